"""One rank of `test_tensor_parallel.py`: generates in many ways, and saves the ids."""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

import uag
from tests.support.calls import left_padded
from uag.candidates import CandidateGeneratorMixin

Ids = list[list[int]]


class Unknown(LogitsProcessor):
    """A processor unknown to uag: rows advance in lockstep, one output token at a time."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores - 0.5 * (torch.arange(scores.shape[-1]) == input_ids[:, -1:])


class MixedTarget(CandidateGeneratorMixin, LlamaForCausalLM):
    """A target in transformers' own loop."""


class Worker:
    """One rank, or the single process that it is compared with."""

    def __init__(self, spec: dict[str, Any], rank: int | None = None) -> None:
        self.spec = spec
        self.rank = rank
        self.target = self.load(AutoModelForCausalLM)
        self.draft = AutoModelForCausalLM.from_pretrained(spec["draft"], dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(spec["target"])
        self.draft_tokenizer = AutoTokenizer.from_pretrained(spec["draft"])
        inputs = left_padded([self.tokenizer(text)["input_ids"] for text in spec["prompts"]])
        self.ids, self.mask = inputs["input_ids"], inputs["attention_mask"]
        self.assistant = self.make()

    def load(self, kind: Any) -> Any:
        split: dict[str, Any] = {}
        if self.rank is not None and self.spec.get("is_pipeline"):
            from transformers.distributed import DistributedConfig

            split = {"distributed_config": DistributedConfig(pp_size=2)}
        elif self.rank is not None:
            split = {"tp_plan": "auto"}
        return kind.from_pretrained(self.spec["target"], dtype=torch.float32, **split).eval()

    def make(self, draft: Any = ..., **options: Any) -> uag.Assistant:
        return uag.Assistant(self.draft if draft is ... else draft, self.draft_tokenizer, self.tokenizer, **options)

    def run(self, generate: Callable[..., Any], seed: int, num_rows: int = 1, **options: Any) -> tuple[Ids, str]:
        mask = self.mask[:num_rows]
        start = int(mask.any(0).long().argmax())
        torch.manual_seed(seed)
        options = {"max_new_tokens": self.spec["num_tokens"], "pad_token_id": 0, "do_sample": False} | options
        output = generate(input_ids=self.ids[:num_rows, start:], attention_mask=mask[:, start:], **options)
        return output.tolist(), torch.get_rng_state().numpy().tobytes().hex()[-2000:]

    def assisted(self, assistant: uag.Assistant | None = None) -> Callable[..., Any]:
        used = assistant or self.assistant
        return lambda **options: used.generate(self.target, **options)

    # Results that must be equal for plain decoding and uag, in one process and on every rank.

    def compared(self, generate: Callable[..., Any]) -> dict[str, Any]:
        size, sampled = len(self.spec["prompts"]), {"do_sample": True}
        found: dict[str, Any] = {"greedy": self.run(generate, 0), "batch": self.run(generate, 0, size)}
        for seed in range(self.spec["num_seeds"]):
            found[f"seed {seed}"] = self.run(generate, seed, **sampled)
        found["sampled batch"] = self.run(generate, 7, size, **sampled, temperature=0.8, top_p=0.9)
        unknown = {"logits_processor": LogitsProcessorList([Unknown()])}
        found["in step"] = self.run(generate, 8, size, **sampled, **unknown)
        found["penalty"] = self.run(generate, 9, repetition_penalty=1.2)
        return found

    # Checks that apply only to several ranks, or only to uag.

    def others(self) -> dict[str, Any]:
        rank = self.rank or 0
        found: dict[str, Any] = {}
        own = self.make(self.draft if rank == 0 else None, num_candidate_tokens=3)
        found["draft on rank 0 only"] = self.run(self.assisted(own), 0)[0]
        with mock.patch.object(time, "perf_counter", _restless(rank)):
            found["clocks that differ"] = self.run(self.assisted(self.make()), 0)[0]
        # Rank 1's clock is past the time limit from the start.
        with mock.patch.object(time, "time", side_effect=(1000.0 * rank * num for num in range(10_000))):
            found["time left on rank 0"] = self.run(self.assisted(), 0, max_time=600.0)[0]
        for name, num_rows in (("time up on rank 0", 1), ("time up on rank 0, batch", len(self.spec["prompts"]))):
            with mock.patch.object(time, "time", side_effect=(float(num * (1 - rank)) for num in range(10_000))):
                found[name] = self.run(self.assisted(), 0, num_rows, max_time=0.5)[0]
        for owner in (0, 1):  # a reason on a single rank must not leave the others waiting in a broadcast
            handles = [self.target.model.norm.register_forward_hook(lambda *_: None)] if rank == owner else []
            found[f"hook on rank {owner} only"] = self.run(self.assisted(self.make()), 0)[0]
            for handle in handles:
                handle.remove()
        found["seeds that differ"] = self.run(self.assisted(), 1 + 100 * rank, do_sample=True)[0]
        whole = LlamaForCausalLM.from_pretrained(self.spec["target"], dtype=torch.float32).eval()
        rejecting = uag.Assistant(whole, self.tokenizer, self.tokenizer, sampling="rejection", num_candidate_tokens=3)
        found["rejection"] = self.run(self.assisted(rejecting), 5, do_sample=True)
        mixed = self.load(MixedTarget)
        tokenizers = {"tokenizer": self.tokenizer, "assistant_tokenizer": self.draft_tokenizer}
        drafted = {"assistant_model": self.draft} | tokenizers
        found["transformers' loop"] = self.run(lambda **o: mixed.generate(**drafted, **o), 0)[0]
        uag.install()
        found["installed"] = self.run(lambda **o: self.target.generate(**drafted, **o), 0)[0]
        uag.uninstall()
        self.run(self.assisted(self.make(num_candidate_tokens=3)), 0, max_new_tokens=3 * self.spec["num_tokens"])
        stats = uag.last_stats(self.target)
        found["counts"] = [stats.num_target_forwards, stats.num_candidate_tokens, stats.num_accepted_tokens]
        found["draft passes"] = stats.num_draft_forwards
        return found


def _restless(rank: int) -> Callable[[], float]:
    generator, start = random.Random(rank), time.perf_counter()
    ticks = [start]

    def read() -> float:
        ticks[0] += generator.random() ** 4
        return ticks[0]

    return read


def run_rank(rank: int, spec: dict[str, Any], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    store = f"file://{folder / spec['name']}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    worker = Worker(spec, rank)
    found = {"uag": worker.compared(worker.assisted())}
    if "plain" in spec["beside"]:
        found["plain"] = worker.compared(worker.target.generate)
    if "others" in spec["beside"]:
        found["others"] = worker.others()
    (folder / f"{spec['name']} {rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
