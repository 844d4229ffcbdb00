"""`uag distill`: make a draft for a target."""

import time
from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, IsChat, MaxNewTokens, console, error_console, print_json, quieten

_STAGES = {"writing": "the target has written {} of {} texts", "training": "training step {} of {}"}
_SECONDS_BETWEEN_LINES = 10.0


def distill(
    target: Annotated[str, typer.Option(help="Hub name or folder of the target.")],
    draft: Annotated[str, typer.Option(help="Hub name or folder of the draft to begin with.")],
    output: Annotated[Path, typer.Option(help="Folder for the trained draft.")],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts for the target: one per line, blocks separated by lines ---, or JSON lines with prompt or "
            "messages."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(help="Instead of --prompts: JSON lines with prompt, and text that the target wrote elsewhere."),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Prompts (or texts) to measure on, not trained on; default: a tenth of all.")
    ] = None,
    num_texts: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of texts; default: one per prompt and temperature.")
    ] = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", min=0.0, help="Continue each prompt once at each, repeatable; 0 is greedy."),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    texts_at_once: Annotated[int, typer.Option(min=1, help="Texts that the target writes in one batch.")] = 64,
    num_epochs: Annotated[float, typer.Option("--epochs", min=0.01, help="Passes over the texts.")] = 3.0,
    learning_rate: Annotated[float | None, typer.Option(help="Default: derived from the number of weights.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per training step.")] = 32,
    patience: Annotated[
        int, typer.Option(min=0, help="Evaluations without a gain after which training ends; 0: never.")
    ] = 3,
    seed: int = 0,
    is_chat: IsChat = False,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Make a draft for your target: the target writes, the draft is trained. Run it again to continue a stopped run."""
    quieten()
    from uag.distill import Writing
    from uag.distill import distill as run

    writing = Writing(
        temperatures=tuple(temperatures or Writing.temperatures),
        num_texts=num_texts,
        max_new_tokens=max_new_tokens,
        batch_size=texts_at_once,
        seed=seed,
        is_chat=is_chat,
    )
    training = {"num_train_epochs": num_epochs, "per_device_train_batch_size": batch_size, "seed": seed}
    if learning_rate is not None:
        training["learning_rate"] = learning_rate
    result = run(
        target,
        draft,
        output,
        prompts=prompts,
        texts=texts,
        held_out=held_out,
        writing=writing,
        training=training,
        patience=patience,
        dtype=dtype,
        device=device,
        on_progress=(lambda *_: None) if as_json else _Lines(),
    )
    if as_json:
        print_json(result.to_dict())
        return
    for before, after in zip(result.before, result.after, strict=True):
        console.print(f"agreement, {after.mode}: {before.agreement:.1%} -> {after.agreement:.1%}", highlight=False)
        passes = f"{before.tokens_per_pass:.2f} -> {after.tokens_per_pass:.2f}"
        console.print(f"tokens per pass, {after.mode}: {passes}", highlight=False)
    console.print(
        f"trained on {result.num_texts} texts; the draft is in {result.folder}", highlight=False, soft_wrap=True
    )
    console.print(result.verdict, style="green" if result.is_better else "yellow", highlight=False, soft_wrap=True)


class _Lines:
    """Prints progress on standard error: a line at the start and end of a stage, and now and then between."""

    def __init__(self) -> None:
        self._next_s = dict.fromkeys(_STAGES, 0.0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now >= self._next_s[stage]:
            self._next_s[stage] = now + _SECONDS_BETWEEN_LINES
            error_console.print(_STAGES[stage].format(done, total), highlight=False)
