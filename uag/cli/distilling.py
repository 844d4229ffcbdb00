"""`uag distill`: make a draft for a target."""

from pathlib import Path
from typing import Annotated

import typer

from uag.cli.common import AsJson, Device, Dtype, IsChat, console, error_console, print_json, quieten


def distill(
    target: Annotated[str, typer.Option(help="Hub name or folder of the target.")],
    draft: Annotated[str, typer.Option(help="Hub name or folder of the draft to begin with.")],
    prompts: Annotated[
        Path,
        typer.Option(
            help="Prompts for the target: a line each, blocks with a line --- between them, or JSON lines with prompt "
            "or messages."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder for the draft that comes out.")],
    held_out: Annotated[
        Path | None, typer.Option(help="Prompts to measure on, never learnt; default: a tenth of --prompts.")
    ] = None,
    num_texts: Annotated[
        int | None, typer.Option(min=1, help="Texts to write; default: one of each prompt at each temperature.")
    ] = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", min=0.0, help="Of a prompt's first, second, ... text, repeatable; 0 is greedy."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a text at most.")] = 128,
    texts_at_once: Annotated[int, typer.Option(min=1, help="Texts that the target writes together.")] = 64,
    max_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop writing then, and learn from what is there.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where the target writes: transformers, vllm or ray.")] = "transformers",
    num_workers: Annotated[int, typer.Option("--workers", min=1, help="Of Ray, each with a target of its own.")] = 1,
    num_epochs: Annotated[float, typer.Option("--epochs", help="Times that every text is read.")] = 3.0,
    learning_rate: Annotated[float | None, typer.Option(help="Default: by the number of weights.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts of a training step.")] = 32,
    lora_rank: Annotated[int, typer.Option(min=0, help="Train an adapter of this rank; 0: all weights.")] = 0,
    patience: Annotated[
        int, typer.Option(min=0, help="Evaluations without a gain after which training ends; 0: never.")
    ] = 3,
    num_candidate_tokens: Annotated[int, typer.Option("--candidates", min=1, help="Of a round that is measured.")] = 4,
    seed: int = 0,
    is_chat: IsChat = False,
    dtype: Dtype = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Make a draft for your target: the target writes, the draft learns. Start it again where it was stopped."""
    quieten()
    from uag.cli.distill_progress import shown_progress
    from uag.distill import Training, Writing
    from uag.distill import distill as run

    writing = Writing(
        temperatures=tuple(temperatures or Writing.temperatures),
        num_texts=num_texts,
        max_new_tokens=max_new_tokens,
        batch_size=texts_at_once,
        max_minutes=max_minutes,
        seed=seed,
        is_chat=is_chat,
        engine=engine,
        engine_options={"num_workers": num_workers} if engine == "ray" else {},
    )
    training = Training(
        num_epochs=num_epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        lora_rank=lora_rank,
        patience=patience,
        seed=seed,
    )
    with shown_progress(error_console, is_shown=not as_json) as on_progress:
        result = run(
            target,
            draft,
            prompts,
            output,
            held_out=held_out,
            writing=writing,
            training=training,
            num_candidate_tokens=num_candidate_tokens,
            dtype=dtype,
            device=device,
            on_progress=on_progress,
        )
    if as_json:
        print_json(result.to_dict())
        return
    for before, after in zip(result.before, result.after, strict=True):
        console.print(f"before  {before}\nafter   {after}", highlight=False, soft_wrap=True)
    console.print(f"{result.num_texts} texts learnt; the draft is in {result.folder}", highlight=False, soft_wrap=True)
    if not result.is_better:
        error_console.print(
            "The draft agrees with its target no more often than before: more prompts or texts, or another learning "
            "rate, may help.",
            style="yellow",
        )
