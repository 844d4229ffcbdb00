"""Distillation from end to end: the target writes, the draft learns, both before and after are measured."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from uag.distill.acceptance import Acceptance, measure
from uag.distill.card import write_card
from uag.distill.engines import repetition_penalty
from uag.distill.folder import WorkFolder
from uag.distill.prompts import Prompt, encode_prompts, hold_out, prompts_digest, read_prompts
from uag.distill.replay import Replay
from uag.distill.rows import RowEncoder
from uag.distill.stage import Writing, write_texts
from uag.distill.texts import Text, TextStore, tasks
from uag.distill.training import Training, check_trainable, with_lora
from uag.drafting import Pairing
from uag.errors import OptionError
from uag.gguf import is_gguf_name
from uag.hf import models
from uag.loading import load_model, load_tokenizer

_HELD_OUT = "held-out-"
"""What the ids of texts begin with that nothing is trained on."""

_WRITING = ("temperatures", "num_texts", "max_new_tokens", "seed", "is_chat")
"""What the texts depend on; the rest of `Writing` only says how they are made."""

OnProgress = Callable[[str, int, int], object]
Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Result:
    """What a distillation gave.

    Attributes:
        folder: the draft, for `from_pretrained`.
        num_texts: texts that it learnt from.
        before: acceptance of the draft as it came: greedy, and at a temperature where sampled texts can be measured.
        after: of the result.
        history: (step, agreement) at every evaluation of the last run.
    """

    folder: str
    num_texts: int
    before: tuple[Acceptance, ...]
    after: tuple[Acceptance, ...]
    history: tuple[tuple[int, float], ...] = ()

    @property
    def is_better(self) -> bool:
        """Whether the draft agrees with its target more often than before."""
        return self.after[0].agreement.value > self.before[0].agreement.value

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Result":
        """Read what `to_dict` gave."""
        both = {name: tuple(map(Acceptance.from_dict, values[name])) for name in ("before", "after")}
        return cls(**values | both | {"history": tuple((step, value) for step, value in values["history"])})


def distill(
    target: str,
    draft: str,
    prompts: Path | str | Sequence[Prompt],
    output: Path | str,
    *,
    held_out: Path | str | Sequence[Prompt] | None = None,
    writing: Writing | None = None,
    training: Training | None = None,
    num_held_out: int = 32,
    num_candidate_tokens: int = 4,
    dtype: str | None = None,
    device: str | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> Result:
    """Let a target write texts and train a draft on them; a run that was stopped or killed goes on where it was.

    Args:
        target: hub name or folder.
        draft: hub name or folder of a causal model with float weights; its tokenizer may be another.
        prompts: a file (see `read_prompts`) or prompts.
        output: folder for the draft, its tokenizer and its card; `work` in it is what a stopped run goes on with.
        held_out: prompts that nothing is trained on; None takes some of `prompts`.
        writing: what the target writes, and where.
        training: how the draft learns.
        num_held_out: held-out prompts at most.
        num_candidate_tokens: candidates of a round that tokens per pass are measured with.
        dtype: of the target, see `uag.loading.load_pair`.
        device: of both models.
        on_progress: called with the stage ("writing", "training"), what is done and what there is in all.

    Raises:
        OptionError: prompts or options that cannot work, a draft that cannot learn, or a folder that was begun with
            other settings.
        PairError: the tokenizers have nothing in common.
        OSError: no such model or file, or too little space on the disk.
        ImportError: accelerate, peft or the engine is not installed.
    """
    _refuse_gguf(draft)
    run = _Run(
        *(target, draft, Path(output), writing or Writing(), training or Training()),
        *(num_candidate_tokens, dtype, device, on_progress),
    )
    return run.run(_read(prompts), [] if held_out is None else _read(held_out), num_held_out)


@dataclass
class _Run:
    target: str
    draft: str
    output: Path
    writing: Writing
    training: Training
    num_candidate_tokens: int
    dtype: str | None
    device: str | None
    on_progress: OnProgress

    def __post_init__(self) -> None:
        self.folder = WorkFolder(self.output / "work")

    def run(self, prompts: list[Prompt], held_out: list[Prompt], num_held_out: int) -> Result:
        """Run what is left to do."""
        tokenizer, config = load_tokenizer(self.target), AutoConfig.from_pretrained(self.target)
        if config.is_encoder_decoder:
            raise OptionError(f"{self.target!r} is an encoder-decoder: only the texts of causal targets can be learnt")
        room = models.max_positions_of(config) - self.writing.max_new_tokens
        encoded, held = (
            encode_prompts(tokenizer, part, is_chat=self.writing.is_chat, max_tokens=room)
            for part in (prompts, held_out)
        )
        if not held:
            places = set(hold_out(len(encoded), num_held_out))
            held = [ids for place, ids in enumerate(encoded) if place in places]
            encoded = [ids for place, ids in enumerate(encoded) if place not in places]
        held = held[:num_held_out]
        self.folder.begin(self._settings(encoded, held))
        finished = self.folder.read("summary")
        if finished is not None:
            return Result.from_dict(finished)
        return self._run(tokenizer, config, encoded, held)

    def _settings(self, encoded: Ids, held: Ids) -> dict[str, Any]:
        written = {name: getattr(self.writing, name) for name in _WRITING}
        trained = {f"training {name}": value for name, value in asdict(self.training).items()}
        return (
            {"target": self.target, "draft": self.draft, "prompts": prompts_digest(encoded, held)} | written | trained
        )

    def _run(self, tokenizer: Any, config: Any, encoded: Ids, held: Ids) -> Result:
        draft_tokenizer = load_tokenizer(self.draft)
        model = load_model(self.draft, dtype="float32", device=self.device)
        check_trainable(model, self.draft, self.training.lora_rank)
        most = min(self.training.max_length, models.max_positions(model))
        rows = RowEncoder(
            model, draft_tokenizer, tokenizer, max_length=most, learns_prompts=self.training.learns_prompts
        )
        replay = self._replay(model, tokenizer, draft_tokenizer, config)
        texts, held_texts = self._texts(encoded, held, tokenizer)

        found = self.folder.read("before")
        before = self._measure(replay, held_texts) if found is None else tuple(map(Acceptance.from_dict, found))
        self.folder.write("before", [acceptance.to_dict() for acceptance in before])

        from uag.distill.trainer import train  # the trainer takes seconds to import

        learner = with_lora(model, self.training.lora_rank) if self.training.lora_rank else model
        greedy = [text for text in held_texts if not text.temperature]
        history = train(
            learner,
            _padding(draft_tokenizer),
            rows.encode(texts),
            (rows.encode(greedy), greedy),
            self.folder.checkpoints,
            self.training,
            replay,
            device=self.device,
            on_progress=self.on_progress,
        )
        dtype = AutoConfig.from_pretrained(self.draft).dtype
        learnt = _finished(learner.eval(), dtype, is_adapter=self.training.lora_rank > 0)
        after = self._measure(replay, held_texts)
        result = Result(str(self.output), len(texts), before, after, tuple(history))
        _rounded(learnt, dtype).save_pretrained(self.output)
        load_tokenizer(self.draft).save_pretrained(self.output)  # as it came: padding was ours
        write_card(self.output, self.target, self.draft, len(encoded), self.writing, self.training, result)
        self.folder.write("summary", result.to_dict())
        return result

    def _replay(self, model: Any, tokenizer: Any, draft_tokenizer: Any, config: Any) -> Replay:
        drafter = Pairing(model, tokenizer, draft_tokenizer, prompt_lookup=False).for_all
        if drafter is None:
            raise OptionError("a tokenizer is missing")
        size = config.get_text_config(decoder=True).vocab_size
        options = {"repetition_penalty": repetition_penalty(self.target), "device": model.device}
        return Replay(drafter, size, self.num_candidate_tokens, **options)

    def _texts(self, encoded: Ids, held: Ids, tokenizer: Any) -> tuple[list[Text], list[Text]]:
        """Return the texts to learn and the held-out ones, written now where they are not there yet."""
        writing, store = self.writing, TextStore(self.folder.texts)
        if self.folder.read("written") is None:
            sampled = [temperature for temperature in writing.temperatures if temperature]
            held_due = tasks(held, (0.0, *sampled[-1:]), None, writing.seed, prefix=_HELD_OUT)
            due = tasks(encoded, writing.temperatures, writing.num_texts, writing.seed)
            request = writing.request(self.target, self.dtype, self.device)
            write_texts(store, held_due, due, writing, request, tokenizer, self.on_progress)
            self.folder.write("written", {"num_texts": len(store.ids())})
            gc.collect()  # the target is not needed any more
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        texts = sorted(store.texts(), key=lambda text: text.text_id)  # a stopped run wrote them in another order
        own = [text for text in texts if not text.text_id.startswith(_HELD_OUT)]
        return own, [text for text in texts if text.text_id.startswith(_HELD_OUT)]

    def _measure(self, replay: Replay, held: list[Text]) -> tuple[Acceptance, ...]:
        """Measure greedy texts, then sampled ones whose noise is known."""
        known = [text for text in held if text.seed is not None or not text.temperature]
        temperatures = sorted({text.temperature for text in known})
        return tuple(measure(replay, [text for text in known if text.temperature == t]) for t in temperatures)


def _finished(model: Any, dtype: torch.dtype | None, *, is_adapter: bool) -> Any:
    """Return the draft with its adapter merged, its weights rounded as they will be saved, still in float32."""
    if is_adapter and not getattr(model.get_base_model(), "is_quantized", False):
        model = model.merge_and_unload()
    return _rounded(_rounded(model, dtype), torch.float32)


def _rounded(model: Any, dtype: torch.dtype | None) -> Any:
    return model if dtype is None or getattr(model, "is_quantized", False) else model.to(dtype)


def _refuse_gguf(draft: str) -> None:
    if is_gguf_name(draft):
        raise OptionError(
            f"{draft!r} is a GGUF file, whose weights take no gradients: distill the float model that it was made "
            "from, then convert the result (llama.cpp's convert_hf_to_gguf.py)"
        )


def _padding(tokenizer: Any) -> Any:
    """Return a tokenizer that can pad: a mask hides the padding, so any token does."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _read(prompts: Path | str | Sequence[Prompt]) -> list[Prompt]:
    return read_prompts(Path(prompts)) if isinstance(prompts, Path | str) else list(prompts)
