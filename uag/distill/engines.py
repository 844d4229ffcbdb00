"""Where the target writes: in this process through transformers, in vLLM, or in workers of Ray.

The bulk of a distillation's time goes there. Each engine takes the same tasks and gives the same texts: greedy ones up
to rounding, sampled ones from noise of its own in vLLM.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from transformers import GenerationConfig

from uag.distill.texts import Task, Text
from uag.distill.writing import BatchWriter
from uag.errors import OptionError
from uag.loading import load_model
from uag.ray import import_ray

Written = Iterator[list[Text]]
Engine = Callable[["Request", Sequence[Sequence[Task]]], Written]

_VLLM_BATCHES = 8
"""Batches that vLLM gets at once: more keep it busier, and lose more where the process dies."""


@dataclass(frozen=True)
class Request:
    """What every engine is told.

    Attributes:
        target: hub name or folder.
        max_new_tokens: output tokens of a text at most.
        dtype: see `uag.loading.load_pair`.
        device: the same.
        options: the engine's own: of `vllm.LLM`; for Ray `num_workers`, and of `map_batches` all else.
    """

    target: str
    max_new_tokens: int
    dtype: str | None = None
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def writer(self) -> BatchWriter:
        """Load the target here."""
        return BatchWriter(load_model(self.target, dtype=self.dtype, device=self.device), self.max_new_tokens)


def with_transformers(request: Request, due: Sequence[Sequence[Task]]) -> Written:
    """Write in this process."""
    if request.options:
        raise OptionError(f"the engine transformers takes no options, and was given {dict(request.options)!r}")
    return request.writer().write_all(due)


def with_vllm(request: Request, due: Sequence[Sequence[Task]]) -> Written:
    """Write in vLLM, which batches by itself.

    Raises:
        ImportError: vLLM is not installed.
    """
    try:
        from vllm import LLM, SamplingParams
    except ImportError as error:
        raise ImportError(f"the engine vllm needs vLLM ({error}). Install it: pip install 'uag[vllm]'") from error
    options = {"dtype": request.dtype} if request.dtype else {}
    sampling = {"max_tokens": request.max_new_tokens, "repetition_penalty": repetition_penalty(request.target)}
    llm = LLM(request.target, **{**options, **request.options})
    try:
        for first in range(0, len(due), _VLLM_BATCHES):
            part = list(chain.from_iterable(due[first : first + _VLLM_BATCHES]))
            # Seeds in vLLM have 63 bits too, but other noise comes of them.
            params = [SamplingParams(temperature=task.temperature, seed=task.seed, **sampling) for task in part]
            prompts = [{"prompt_token_ids": list(task.prompt_ids)} for task in part]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            yield [
                Text(task.text_id, task.prompt_ids, tuple(output.outputs[0].token_ids), task.temperature, None)
                for task, output in zip(part, outputs, strict=True)
            ]
    finally:
        # Its process would keep nine tenths of the memory while the draft is trained.
        llm.llm_engine.engine_core.shutdown()


def repetition_penalty(target: str) -> float:
    """Return the penalty of a target's generation config, which greedy decoding follows too; 1.0 does nothing."""
    try:
        return float(GenerationConfig.from_pretrained(target).repetition_penalty or 1.0)
    except OSError:  # none lies with the model
        return 1.0


def with_ray(request: Request, due: Sequence[Sequence[Task]]) -> Written:
    """Write in workers of Ray, each with a target of its own; a worker that dies is replaced, and its batch runs again.

    Raises:
        ImportError: Ray is not installed.
    """
    ray = import_ray()
    options = {"num_cpus": 0.5, **request.options}  # leaves room for the tasks that cut and gather
    num_workers = options.pop("num_workers", 1)
    rows = [{"batch": [vars(task) | {"prompt_ids": list(task.prompt_ids)} for task in batch]} for batch in due]
    results = (
        ray.data.from_items(rows)
        .repartition(target_num_rows_per_block=1)
        .map_batches(
            _RayWriter,
            fn_constructor_args=(request,),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=num_workers),
            **options,
        )
    )
    for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in table.to_pylist():
            yield [
                Text(t["text_id"], tuple(t["prompt_ids"]), tuple(t["output_ids"]), t["temperature"], t["seed"])
                for t in row["texts"]
            ]


class _RayWriter:
    """What a worker of Ray does: batches of tasks in, batches of texts out, in tables of one column."""

    def __init__(self, request: Request) -> None:
        self.writer = request.writer()

    def __call__(self, table: Any) -> Any:
        import pyarrow

        batches = [[_task(row) for row in rows] for rows in table["batch"].to_pylist()]
        texts = [[vars(text) for text in self.writer.write(batch)] for batch in batches]
        return pyarrow.table({"texts": texts})


def _task(row: Mapping[str, Any]) -> Task:
    return Task(row["text_id"], tuple(row["prompt_ids"]), row["temperature"], row["seed"])


ENGINES: dict[str, Engine] = {"transformers": with_transformers, "vllm": with_vllm, "ray": with_ray}
