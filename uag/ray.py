"""Ray Data: generate text for a dataset of prompts on many workers, each with a target and a draft; see docs/ray.md.

A row's result depends only on that row, not on the worker, the order of the rows, or retries: greedy rows equal the
target's plain greedy decoding of that prompt, sampled rows its plain sampling after
`torch.manual_seed(row_seed(seed, row id))`.
"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from uag.assistant import Assistant
from uag.errors import OptionError
from uag.hf import models
from uag.loading import Pair, encode, load_pair
from uag.sampling import row_seed

__all__ = ["BatchGenerator", "row_seed"]

Row = dict[str, Any]

_ROW_ERRORS = (ValueError, TypeError, IndexError, KeyError, RuntimeError)
"""Errors that a single row can cause by its prompt, its length or its memory use."""

_KINDS = ("output_tokens", "candidate_tokens", "accepted_tokens", "target_forwards", "draft_forwards")
_COUNTS = tuple(f"num_{kind}" for kind in _KINDS)
COLUMNS = ("generated_text", "generated_ids", "generation_error", "generation_seed", "generation_stats")
"""The columns that are added to a row, in this order."""


class BatchGenerator:
    """A callable class for Ray Data's `map_batches`: each worker loads a pair and generates for its batches.

    Adds five columns: `generated_text`; `generated_ids`; `generation_error`, null unless the row failed, in which case
    text and ids are null; `generation_seed`; `generation_stats` (tokens, passes and seconds). Rows are generated one
    after another, because padding in a batch changes the last bits of the scores.

    Args:
        target: hub name or folder of the target; None for the demo's.
        draft: hub name or folder of the draft; None for the demo's.
        load: function that loads the pair on the worker instead, for quantized models or a `device_map`.
        dtype, device: see `uag.loading.load_pair`.
        prompt_column: the column of prompts.
        id_column: the column that identifies a row, for its seed; None uses `seed` for every row.
        seed: seed for all sampling; see `row_seed`.
        is_chat: make each prompt a user turn of the target's chat template.
        assistant_options: options of `uag.Assistant`.
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
        id_column: str | None = "id",
        seed: int = 0,
        is_chat: bool = False,
        assistant_options: Mapping[str, Any] | None = None,
        max_new_tokens: int = 256,
        **generate_options: Any,
    ) -> None:
        self.pair = load() if load is not None else load_pair(target, draft, dtype=dtype, device=device)
        self.prompt_column, self.id_column, self.seed, self.is_chat = prompt_column, id_column, seed, is_chat
        self.max_new_tokens = max_new_tokens
        self.options = {**generate_options, "max_new_tokens": max_new_tokens}
        self._check_options(assistant_options or {})
        self._generator = torch.Generator(self.pair.target.device)
        self._lock = threading.Lock()  # threads of a worker share the generator
        own = self.pair.draft, self.pair.draft_tokenizer, self.pair.target_tokenizer
        self.assistant = Assistant(*own, generator=self._generator, **(assistant_options or {}))

    def _check_options(self, assistant_options: Mapping[str, Any]) -> None:
        """Refuse options that would fail in every row, or make rows depend on each other."""
        config = copy.deepcopy(self.pair.target.generation_config)
        unknown = config.update(**self.options)
        if unknown:
            raise OptionError(
                f"{', '.join(map(repr, unknown))}: not an option of uag.ray.BatchGenerator or of generate"
            )
        if config.num_return_sequences not in (None, 1) or (config.num_beams or 1) > 1:
            raise OptionError("num_return_sequences and num_beams must be 1: a row has one output")
        if config.return_dict_in_generate:
            raise OptionError("return_dict_in_generate must be False: a row's output is ids, text and statistics")
        if "generator" in assistant_options or assistant_options.get("sampling", "shared-noise") != "shared-noise":
            raise OptionError(
                "assistant_options accepts no generator and no sampling: a row's sample must depend on its seed alone"
            )

    def __call__(self, batch: Any) -> Any:
        """Return a batch (`pyarrow.Table`, or a dict of columns) as a `pyarrow.Table` with the five columns.

        Raises:
            OptionError: a column is missing.
        """
        import pyarrow

        table = batch if isinstance(batch, pyarrow.Table) else pyarrow.table(_flat(batch))
        table = table.drop_columns([name for name in COLUMNS if name in table.column_names])
        stats = [*((name, pyarrow.int64()) for name in _COUNTS), ("total_s", pyarrow.float64())]
        types = (
            pyarrow.string(), pyarrow.list_(pyarrow.int64()), pyarrow.string(), pyarrow.int64(), pyarrow.struct(stats)
        )  # fmt: skip
        schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)))
        added = pyarrow.Table.from_pylist(self.generate(table.to_pylist()), schema)
        for name in COLUMNS:
            table = table.append_column(name, added[name])
        return table

    def generate(self, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Return the five columns of each row, as plain data.

        Raises:
            OptionError: a column is missing.
        """
        for name in (self.prompt_column, self.id_column):
            if rows and name is not None and name not in rows[0]:
                raise OptionError(f"the rows have no column {name!r}; they have {', '.join(map(repr, rows[0]))}")
        return [self._columns_of(row) for row in rows]

    def _columns_of(self, row: Mapping[str, Any]) -> Row:
        seed = self.seed if self.id_column is None else row_seed(self.seed, row[self.id_column])
        try:
            columns = self._continue(row[self.prompt_column], seed)
        except _ROW_ERRORS as error:
            if isinstance(error, getattr(torch, "AcceleratorError", ())):
                raise  # the device is lost for this process
            columns = dict.fromkeys(COLUMNS) | {"generation_error": f"{type(error).__name__}: {error}"}
        return columns | {"generation_seed": seed}

    def _continue(self, prompt: Any, seed: int) -> Row:
        """Generate for one prompt, or raise an error if it cannot be used."""
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt must be a string, not {prompt!r}")
        pair, inputs = self.pair, encode(self.pair, [prompt], is_chat=self.is_chat)
        size, max_positions = inputs["input_ids"].shape[1], models.max_positions(pair.target)
        if not pair.is_encoder_decoder and size + self.max_new_tokens > max_positions:
            raise ValueError(
                f"the prompt has {size} tokens, with max_new_tokens={self.max_new_tokens} it exceeds the "
                f"{max_positions} positions of the target"
            )
        with self._lock:
            self._generator.manual_seed(seed)
            sequences = self.assistant.generate(pair.target, **inputs, **self.options)
            stats = self.assistant.stats
        ids = sequences[0, pair.prompt_width(inputs) :].tolist()
        return {
            "generated_text": pair.target_tokenizer.decode(ids, skip_special_tokens=True),
            "generated_ids": ids,
            "generation_error": None,
            "generation_stats": {name: getattr(stats, name) for name in (*_COUNTS, "total_s")},
        }


def _flat(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Convert multidimensional arrays of a batch, Ray's form of lists of equal lengths, to lists for pyarrow."""
    return {name: values.tolist() if getattr(values, "ndim", 1) > 1 else values for name, values in batch.items()}
