"""Ray Data: generate text for a dataset of prompts on many workers, each with a target and a draft.

A row's result depends only on that row, not on the worker, the order of the rows, or retries. See docs/integrations.md.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from uag import forks
from uag.assistant import Assistant
from uag.errors import OptionError
from uag.hf import models
from uag.loading import Pair, encode, load_pair
from uag.options import Options
from uag.sampling import row_seed

__all__ = ["BatchGenerator", "row_seed"]

Row = dict[str, Any]

_COUNTS = ("output_tokens", "candidate_tokens", "accepted_tokens", "target_forwards", "draft_forwards")
_STATS = (*(f"num_{count}" for count in _COUNTS), "total_s")
COLUMNS = ("generated_text", "generated_ids", "generation_error", "generation_seed", "generation_stats")


class BatchGenerator:
    """A callable class for Ray Data's `map_batches`: each worker loads a pair and generates for its batches.

    Adds five columns: `generated_text`; `generated_ids`; `generation_error`, null unless the row failed, in which case
    text and ids are null; `generation_seed`; `generation_stats` (tokens, passes and seconds). Rows are generated one
    after another: greedy rows equal the target's plain greedy decoding of that prompt, sampled rows its plain sampling
    after `torch.manual_seed(row_seed(seed, row id))`.

    Args:
        target, draft: hub names or folders; None for the demo's.
        load: function that loads the pair on the worker instead, for quantized models or a `device_map`.
        dtype, device: see `uag.loading.load_pair`.
        prompt_column, id_column: the columns of prompts, and of what identifies a row, for its seed.
        seed: seed for all sampling; see `row_seed`.
        is_chat: make each prompt a user turn of the target's chat template.
        assistant_options: options of `uag.Assistant`, as `uag.Options` or by name.
        max_new_tokens: maximum number of output tokens per row.
        generate_options: other options of `generate`: `do_sample`, `temperature`, `stop_strings`...

    Raises:
        OptionError: an option is unknown, or the options do not yield one output per row.
    """

    def __init__(
        self,
        target: str | None = None,
        draft: str | None = None,
        *,
        load: Callable[[], Pair] | None = None,
        dtype: str | None = None,
        device: str | None = None,
        prompt_column: str = "prompt",
        id_column: str = "id",
        seed: int = 0,
        is_chat: bool = False,
        assistant_options: Options | Mapping[str, Any] | None = None,
        max_new_tokens: int = 256,
        **generate_options: Any,
    ) -> None:
        self.pair = pair = load() if load is not None else load_pair(target, draft, dtype=dtype, device=device)
        self.prompt_column, self.id_column, self.seed, self.is_chat = prompt_column, id_column, seed, is_chat
        self.options = {**generate_options, "max_new_tokens": max_new_tokens}
        options = assistant_options if isinstance(assistant_options, Options) else Options(**(assistant_options or {}))
        config = copy.deepcopy(pair.target.generation_config)
        if unknown := config.update(**self.options):
            raise OptionError(f"not an option of uag.ray.BatchGenerator or of generate: {', '.join(unknown)}")
        if max(config.num_return_sequences or 1, config.num_beams or 1) > 1 or config.return_dict_in_generate:
            raise OptionError("a row has one output: drop num_return_sequences, num_beams and return_dict_in_generate")
        if options.generator is not None or options.sampling != Options.sampling:
            raise OptionError(
                "a row's sample depends on its seed alone: drop assistant_options' generator and sampling"
            )
        self._generator, self._lock = torch.Generator(pair.target.device), forks.turn()  # for a worker's threads
        own = pair.draft, pair.draft_tokenizer, pair.target_tokenizer
        self.assistant = Assistant(*own, options=options, generator=self._generator)

    def __call__(self, batch: Any) -> Any:
        """Return a batch (`pyarrow.Table`, or a dict of columns) as a `pyarrow.Table` with the five columns."""
        import pyarrow as pa

        if not isinstance(batch, pa.Table):
            # Ray's form of lists of equal lengths is an array of more dimensions, which pyarrow does not take.
            batch = pa.table({k: v.tolist() if getattr(v, "ndim", 1) > 1 else v for k, v in batch.items()})
        table = batch.drop_columns([name for name in COLUMNS if name in batch.column_names])
        stats = pa.struct([(name, pa.float64() if name == "total_s" else pa.int64()) for name in _STATS])
        types = pa.string(), pa.list_(pa.int64()), pa.string(), pa.int64(), stats
        added = pa.Table.from_pylist(self.generate(table.to_pylist()), pa.schema(zip(COLUMNS, types, strict=True)))
        for name in COLUMNS:
            table = table.append_column(name, added[name])
        return table

    def generate(self, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Return the five columns of each row, as plain data; works without Ray."""
        for name in (self.prompt_column, self.id_column):
            if rows and name not in rows[0]:
                raise OptionError(f"the rows have no column {name!r}; they have {', '.join(map(repr, rows[0]))}")
        return [self._columns_of(row[self.prompt_column], row_seed(self.seed, row[self.id_column])) for row in rows]

    def _columns_of(self, prompt: Any, seed: int) -> Row:
        columns = dict.fromkeys(COLUMNS) | {"generation_seed": seed}
        try:
            return columns | self._continue(prompt, seed)
        except (ValueError, TypeError, LookupError, RuntimeError) as error:  # by the prompt, its length, or its memory
            if isinstance(error, getattr(torch, "AcceleratorError", ())):
                raise  # the device is lost for this process
            forks.let_pass(error)
            return columns | {"generation_error": f"{type(error).__name__}: {error}"}

    def _continue(self, prompt: Any, seed: int) -> Row:
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt must be a string, not {prompt!r}")
        pair, inputs = self.pair, encode(self.pair, [prompt], is_chat=self.is_chat)
        size = inputs["input_ids"].shape[1] + self.options["max_new_tokens"]
        if not pair.is_encoder_decoder and size > (most := models.max_positions(pair.target)):
            raise ValueError(f"the prompt and max_new_tokens need {size} of the {most} positions of the target")
        with self._lock:
            self._generator.manual_seed(seed)
            sequences = self.assistant.generate(pair.target, **inputs, **self.options)
            stats = {name: getattr(self.assistant.stats, name) for name in _STATS}
        ids = sequences[0, pair.prompt_width(inputs) :].tolist()
        text = pair.target_tokenizer.decode(ids, skip_special_tokens=True)
        return {"generated_text": text, "generated_ids": ids, "generation_stats": stats}
