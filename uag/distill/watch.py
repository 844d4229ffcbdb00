"""What looks on while the draft learns: its acceptance, the progress, and which checkpoints are whole."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from uag.distill.acceptance import agreement
from uag.distill.replay import Replay
from uag.distill.texts import Text

METRIC = "eval_agreement"
_WHOLE = "whole"


class AcceptanceWatch(TrainerCallback):
    """Adds the draft's agreement on held-out texts to every evaluation, for early stopping and the best checkpoint.

    Args:
        replay: drafts with the model that is trained.
        texts: the target's greedy texts.
    """

    def __init__(self, replay: Replay, texts: Sequence[Text]) -> None:
        self._replay = replay
        self._texts = texts
        self.history: list[tuple[int, float]] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure; the trainer reads the figure from the same metrics."""
        metrics = kwargs["metrics"]
        with evaluating(kwargs["model"]):
            metrics[METRIC] = agreement(list(self._replay.run(self._texts))).value
        self.history.append((state.global_step, metrics[METRIC]))


class Progress(TrainerCallback):
    """Tells of every step, and marks every checkpoint that was written to its end."""

    def __init__(self, on_progress: Callable[[str, int, int], object]) -> None:
        self._on_progress = on_progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Tell of a step."""
        self._on_progress("training", state.global_step, state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Mark a checkpoint."""
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()


def last_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint that was written to its end, None where there is none."""
    whole = [path.parent for path in folder.glob(f"checkpoint-*/{_WHOLE}")]
    return max(whole, key=_step, default=None)


def unfinished_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that were not."""
    return [path for path in folder.glob("checkpoint-*") if not (path / _WHOLE).exists()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode, and back."""
    is_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(is_training)
