"""Distillation: the target generates texts, and the draft is trained on them."""

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoConfig

from uag.adapters import from_tokenizer
from uag.bench import Prompt, read_prompts
from uag.distill.training import check_trainable, encode_rows, train
from uag.distill.writing import Text, hold_out, to_write, write, written_elsewhere
from uag.errors import OptionError
from uag.gguf import is_gguf_name
from uag.hf import models
from uag.hf.devices import empty_cache
from uag.loading import Content, load_model, load_tokenizer
from uag.projection import TokenizerPair

_MAX_LENGTH = 1024
"""Maximum number of draft tokens of a training row: increase for long texts, decrease to save memory."""


@dataclass(frozen=True)
class Result:
    """The result of a distillation.

    Attributes:
        folder: the draft, for `from_pretrained`.
        num_texts: texts trained on.
        before: share of the tokens of the held-out texts that were the original draft's first choice.
        after: the same of the trained draft.
    """

    folder: str
    num_texts: int
    before: float
    after: float

    @property
    def is_better(self) -> bool:
        """Whether the draft predicts more tokens of the target than before."""
        return self.after > self.before

    @property
    def verdict(self) -> str:
        """Whether the draft is better, in one sentence."""
        change = f"({self.before:.1%} before, {self.after:.1%} after)"
        if self.is_better:
            return f"Better: the draft predicts more tokens of the held-out texts {change}."
        return f"NOT better: the draft predicts no more tokens of the held-out texts {change}. Keep the old draft."

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        return asdict(self) | {"is_better": self.is_better}


def distill(
    target: str,
    draft: str,
    output: Path | str,
    *,
    prompts: Path | str | Sequence[Content] | None = None,
    texts: Path | str | None = None,
    held_out: Path | str | Sequence[Content] | None = None,
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    max_new_tokens: int = 128,
    texts_at_once: int = 64,
    seed: int = 0,
    is_chat: bool = False,
    training: Mapping[str, Any] = MappingProxyType({}),
    patience: int = 3,
    dtype: str | None = None,
    device: str | None = None,
) -> Result:
    """Let a target generate texts, and train a draft on them; progress is shown on standard error.

    Args:
        target: hub name or folder.
        draft: hub name or folder of a decoder-only model with float weights; its tokenizer may differ.
        output: folder for the draft and its tokenizer, and for the texts, which a second run with the same settings
            does not generate again.
        prompts: a file (see `uag.bench.read_prompts`), or texts and conversations.
        texts: instead of `prompts`, a file of prompts with outputs of the target that were generated elsewhere.
        held_out: prompts or texts to evaluate on, in the same form; None holds out a tenth of `prompts` or `texts`.
        temperatures: each prompt is continued once at each; 0 is greedy.
        max_new_tokens: maximum number of new tokens of a text.
        texts_at_once: texts generated together: increase for speed, decrease to save memory.
        seed: of the sampled texts.
        is_chat: make each prompt a user turn of the target's chat template.
        training: options of `transformers.TrainingArguments`; the default learning rate depends on the draft's size.
        patience: evaluations without improvement after which training stops; 0 never stops early.
        dtype: of the target, see `uag.loading.load_pair`.
        device: of both models.

    Raises:
        OptionError: unusable prompts or options, or a draft that cannot be trained.
        PairError: the tokenizers have nothing in common.
        OSError: a model or file does not exist, or the disk is full.
        ImportError: accelerate is not installed.
    """
    _check(draft, temperatures, min(max_new_tokens, texts_at_once), seed)
    if (prompts is None) == (texts is None):
        raise OptionError("pass either prompts, for the target to continue, or texts that it has generated")
    output = Path(output)
    tokenizer, config = load_tokenizer(target), AutoConfig.from_pretrained(target)
    if config.is_encoder_decoder:
        raise OptionError(f"{target!r} is an encoder-decoder: only decoder-only targets can be distilled")
    learned, held = _divided(read_prompts(texts or prompts or []), held_out)
    if texts is None:
        max_tokens = models.max_positions(config) - max_new_tokens
        listed = partial(to_write, tokenizer, max_tokens=max_tokens, seed=seed, is_chat=is_chat)
        held_texts, due = listed(held, [0.0], prefix="held-out-"), listed(learned, temperatures)
    else:
        held_texts, due = (written_elsewhere(tokenizer, part, is_chat=is_chat) for part in (held, learned))

    draft_tokenizer, model = load_tokenizer(draft), load_model(draft, dtype="float32", device=device)
    check_trainable(model, draft)
    TokenizerPair.of(from_tokenizer(tokenizer), from_tokenizer(draft_tokenizer))  # refuses a pair that cannot work

    output.mkdir(parents=True, exist_ok=True)
    if texts is None:
        settings = [target, dtype, max_new_tokens, *map(asdict, [*held_texts, *due])]
        digest = blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()
        load_target = partial(load_model, target, dtype=dtype, device=device)
        file, options = output / f"texts-{digest}.jsonl", (texts_at_once, max_new_tokens)
        written = _write(file, [*held_texts, *due], *options, tokenizer, load_target)
        held_texts, due = written[: len(held_texts)], written[len(held_texts) :]

    max_length = min(_MAX_LENGTH, models.max_positions(model))
    rows, held_rows = (encode_rows(part, model, draft_tokenizer, tokenizer, max_length) for part in (due, held_texts))
    if not (rows and held_rows):
        raise OptionError("the target ends every text immediately, so there is nothing to learn: use other prompts")
    saved_as = AutoConfig.from_pretrained(draft).dtype or torch.float32
    with TemporaryDirectory(dir=output) as folder:
        before, after = train(model, draft_tokenizer, rows, held_rows, folder, training, patience, device, saved_as)
    model.to(saved_as).save_pretrained(output)
    load_tokenizer(draft).save_pretrained(output)  # without the padding token that training may need
    for path in output.glob("*.safetensors"):
        shutil.copymode(output / "config.json", path)  # safetensors writes files that only their owner can read
    return Result(str(output), len(due), before, after)


def _check(draft: str, temperatures: Sequence[float], least: int, seed: int) -> None:
    """Raise an OptionError for options that cannot be used."""
    if is_gguf_name(draft):
        raise OptionError(f"{draft!r} is a GGUF file and cannot be trained: distill the float model, then convert it")
    if not temperatures or min(temperatures) < 0:
        raise OptionError(f"temperatures must be one or more numbers of at least 0, not {temperatures!r}")
    if least < 1:
        raise OptionError("max_new_tokens and texts_at_once must be at least 1")
    if not 0 <= seed < 1 << 32:
        raise OptionError(f"the seed is {seed}, it must be from 0 to 2**32 - 1")


def _divided(
    prompts: list[Prompt], held_out: Path | str | Sequence[Content] | None
) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to learn from, and those to measure on, which are no part of the others."""
    held = hold_out(prompts) if held_out is None else read_prompts(held_out)
    contents = [prompt.content for prompt in held]  # prompts of another file have other ids
    learned = [
        prompt for prompt in prompts if prompt not in held and (held_out is None or prompt.content not in contents)
    ]
    if not learned:
        raise OptionError("every prompt is also held out, so none is left to train on: hold out other prompts")
    return learned, held


def _write(
    path: Path,
    due: Sequence[Text],
    texts_at_once: int,
    max_new_tokens: int,
    tokenizer: Any,
    load_target: Callable[[], Any],
) -> list[Text]:
    """Generate the texts that are missing in a file of JSON lines, batch by batch, and return all texts."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    path.write_text("".join(f"{line}\n" for line in lines))  # without the incomplete line that a killed run leaves
    done = {row["text_id"]: tuple(row["output_ids"]) for row in map(json.loads, lines)}
    missing = [text for text in due if text.text_id not in done]
    if missing:
        target = load_target()
        missing.sort(key=lambda text: -len(text.prompt_ids))  # so that running out of memory shows at once
        for first in tqdm(range(0, len(missing), texts_at_once), desc="target writing", disable=None):
            with path.open("a") as file:
                for text in write(target, missing[first : first + texts_at_once], max_new_tokens):
                    row = {"text_id": text.text_id, "output_ids": text.output_ids}
                    file.write(json.dumps(row | {"text": tokenizer.decode(text.output_ids)}) + "\n")
                    done[text.text_id] = text.output_ids
        del target  # frees its memory for the training
        gc.collect()
        empty_cache()
    return [replace(text, output_ids=done[text.text_id]) for text in due]
