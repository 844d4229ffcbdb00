"""Output tokens per second of vLLM with and without uag, as the number of requests at once grows.

    python benchmarks/vllm_speed.py [--requests 1 4 16] [--tokens 64] [--trials 5] [--arms plain uag ...] [--pair demo]

Each arm is an engine in a process of its own; all stay loaded, and they take turns, call by call, so that whatever else
the machine does falls on all alike. Arms: plain vLLM; uag as it is set by default (`uag`) and drafting to the limit
(`uag-all`); vLLM's own drafting between vocabularies (`shared-strings`). Greedy; outputs are compared with plain
vLLM's. Printed are medians beside plain vLLM's. Needs vLLM (docs/vllm.md says which builds were tried).
"""

import argparse
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table
from vllm_acceptance import ENVIRONMENT, pairs

from uag.bench import heldout_prompts, spread

ARMS = ("plain", "uag", "uag-all", "shared-strings")


def main() -> None:
    """Measure every arm at every number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["plain", "uag", "uag-all"])
    parser.add_argument("--pair", default="demo<-demo", help="as vllm_acceptance.py names them")
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    target, draft = {name: both for name, *both in pairs()}[arguments.pair]
    arms = list(dict.fromkeys(["plain", *arguments.arms]))
    context = multiprocessing.get_context("spawn")
    engines: dict[str, Connection] = {}
    for arm in arms:
        engines[arm], theirs = context.Pipe()
        worker = (theirs, arm, target, draft, arguments.candidates, max(arguments.requests), arguments.tokens)
        context.Process(target=_serve, args=worker, daemon=True).start()
        engines[arm].recv()

    table = Table(title=f"{arguments.pair}: speed beside plain vLLM", title_justify="left")
    for heading in ("requests", "plain, tokens/s", *arms[1:]):
        table.add_column(heading, justify="right", no_wrap=True)
    for num_requests in arguments.requests:
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for trial in range(arguments.trials + 1):
            found = {}
            for arm, engine in engines.items():
                engine.send(num_requests)
                found[arm], needed = engine.recv()
                if trial:  # the first is for warming up
                    seconds[arm].append(needed)
            for arm in arms[1:]:
                if found[arm] != found["plain"]:
                    raise SystemExit(f"{num_requests} requests: the output of {arm} differs from plain vLLM's")
        medians = {arm: statistics.median(values) for arm, values in seconds.items()}
        speed = num_requests * arguments.tokens / medians["plain"]
        shares = [f"{medians['plain'] / medians[arm]:.2f}" for arm in arms[1:]]
        table.add_row(str(num_requests), f"{speed:.0f}", *shares)
        print(num_requests, f"{speed:.0f}", *shares, flush=True)
    Console(width=100).print(table)


def _serve(parent: Connection, arm: str, target: str, draft: str, num_candidates: int, most: int, tokens: int) -> None:
    """Run one engine: for each number received, run so many requests and send their ids and the seconds."""
    from vllm import LLM, SamplingParams

    custom = {"method": "custom_class", "model": "uag.vllm.Proposer", "num_speculative_tokens": num_candidates}
    options: dict[str, Any] = {
        "plain": {},
        "uag": {"speculative_config": custom, "additional_config": {"uag": {"draft": draft}}},
        "uag-all": {
            "speculative_config": custom,
            "additional_config": {"uag": {"draft": draft, "min_confidence": 0.0}},
        },
        "shared-strings": {
            "speculative_config": {
                "method": "draft_model", "model": draft, "use_heterogeneous_vocab": True,
                "num_speculative_tokens": num_candidates,
            }
        },
    }[arm]  # fmt: skip
    llm = LLM(
        target, dtype="float32", max_model_len=1024, max_num_seqs=most, block_size=32, enforce_eager=True, seed=0,
        enable_prefix_caching=False, **options,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    parent.send("ready")
    while True:
        texts = [prompt.text for prompt in spread(heldout_prompts(), parent.recv())]
        began = time.perf_counter()
        outputs = llm.generate(texts, sampling, use_tqdm=False)
        needed = time.perf_counter() - began
        parent.send(([list(output.outputs[0].token_ids) for output in outputs], needed))


if __name__ == "__main__":
    main()
