"""`uag distill`: train a draft for a target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli import common

_HELD_OUT = "Prompts (or texts) to measure on, not trained on; default: a tenth of all."
_PATIENCE = "Stop after this many evaluations without improvement; 0: never."
_PROMPTS = "Prompts for the target: one per line, or JSON lines (.jsonl) with prompt or messages."
_TEMPERATURES = "Continue each prompt once at each, repeatable; 0 is greedy."
_TEXTS = "Instead of --prompts: JSON lines with prompt and text, the target's output."


def distill(
    target: Annotated[str, typer.Option(help="Hub name or folder of the target.")],
    draft: Annotated[str, typer.Option(help="Hub name or folder of the draft to start from.")],
    output: Annotated[Path, typer.Option(help="Folder for the trained draft.")],
    prompts: Annotated[Path | None, typer.Option(help=_PROMPTS)] = None,
    texts: Annotated[Path | None, typer.Option(help=_TEXTS)] = None,
    held_out: Annotated[Path | None, typer.Option(help=_HELD_OUT)] = None,
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", min=0.0, help=_TEMPERATURES)] = None,
    max_new_tokens: common.MaxNewTokens = 128,
    texts_at_once: Annotated[int, typer.Option(min=1, help="Texts that the target generates in one batch.")] = 64,
    num_epochs: Annotated[float, typer.Option("--epochs", min=0.01, help="Passes over the texts.")] = 3.0,
    learning_rate: Annotated[float | None, typer.Option(help="Default: derived from the number of weights.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per training step.")] = 32,
    patience: Annotated[int, typer.Option(min=0, help=_PATIENCE)] = 3,
    seed: int = 0,
    is_chat: common.IsChat = False,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Train a draft on texts that your target generates.

    Running the same command again reuses the texts.
    """
    common.begin(target, draft)
    from uag.distill import distill as run

    training = {"num_train_epochs": num_epochs, "per_device_train_batch_size": batch_size, "seed": seed}
    result = run(
        target,
        draft,
        output,
        prompts=prompts,
        texts=texts,
        held_out=held_out,
        temperatures=temperatures or (0.0, 0.7, 1.0),
        max_new_tokens=max_new_tokens,
        texts_at_once=texts_at_once,
        seed=seed,
        is_chat=is_chat,
        training=training | ({} if learning_rate is None else {"learning_rate": learning_rate}),
        patience=patience,
        dtype=dtype,
        device=device,
    )
    if as_json:
        common.print_json(result.to_dict())
        return
    common.show(f"trained on {result.num_texts} texts; the draft is in {result.folder}")
    common.show(result.verdict, style="green" if result.is_better else "yellow")
