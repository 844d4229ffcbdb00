"""`uag bench`, and the same command as `uag doctor` and `uag demo`, with other defaults."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from uag.cli import common
from uag.cli.progress import ProgressLine
from uag.errors import OptionError

_ARMS = (
    "Arm to run, repeatable: plain, uag-no-draft, uag, uag-lookup, uag-draft, uag-useless, transformers, prompt-lookup."
)
_CACHE = "cache_implementation of every arm's calls, for example static; default: transformers' own."
_COMPILE = "Compile every arm's passes after the prompt; needs --cache static."
_DRAFTS = "Hub names, folders or GGUF files; several are ranked by speed; default: the demo's."
_JSON = "Print JSON to standard output; progress goes to standard error."
_MINUTES = "Begin no call after this time and report what was measured, shorter if the target is slow; 0: no bound."
_PROMPTS = "JSON lines with prompt, text, messages or turns, or a text with a prompt per line; default: bundled."


def run(
    target: common.TargetArgument = None,
    drafts: Annotated[list[str] | None, typer.Argument(help=_DRAFTS)] = None,
    prompts: Annotated[Path | None, typer.Option(help=_PROMPTS)] = None,
    num_prompts: Annotated[int, typer.Option(min=0, help="Prompts, evenly spaced over the file; 0: all.")] = 8,
    arms: Annotated[list[str] | None, typer.Option("--arm", help=_ARMS)] = None,
    minutes: Annotated[float, typer.Option(min=0, help=_MINUTES)] = 0.0,
    num_trials: Annotated[int, typer.Option("--trials", min=1, help="Timed runs of each arm on each prompt.")] = 5,
    max_new_tokens: common.MaxNewTokens = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per call.")] = 1,
    temperature: common.Temperature = 0.0,
    seed: common.Seed = 0,
    is_chat: common.IsChat = False,
    cache: Annotated[str | None, typer.Option(help=_CACHE)] = None,
    is_compiled: Annotated[bool, typer.Option("--compile", help=_COMPILE)] = False,
    compile_draft: common.CompileDraft = False,
    draft_independent: common.DraftIndependent = False,
    dtype: common.Dtype = None,
    device: common.Device = None,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
    misplaced: Annotated[str | None, typer.Option("--target", "--draft", hidden=True)] = None,
    shows_text: bool = False,
) -> None:
    """Measure the arms in turns, and print a table with its conclusions; `shows_text` prints a colored output, too."""
    given = locals()  # the flags of options have their names
    if misplaced is not None:
        raise OptionError("This command takes models without --target and --draft: TARGET DRAFT DRAFT...")
    common.begin(target, *(drafts or []))
    import torch

    from uag import bench as library
    from uag.assistant import Assistant

    if target is None:
        torch.set_num_threads(1)  # for models this small, synchronizing threads costs more than it saves
    chosen = library.heldout_prompts() if prompts is None else library.read_prompts(prompts)
    chosen = library.spread(chosen, num_prompts)
    options = library.BenchOptions(
        arm_names=tuple(arms or library.ARM_NAMES),
        **{field.name: given[field.name] for field in fields(library.BenchOptions) if field.name in given},
    )
    with ProgressLine(minutes) as progress:
        pairs, refused = library.load_pairs(target, drafts or [], options, dtype=dtype, device=device)
        pair = pairs[0]
        built = library.build_arms(pair, options, pairs[1:])
        records = [*library.measure(pair, chosen, options, arms=built, progress=progress), *refused]
    found = library.conclusions(records) | {"losses": library.losses(pairs)}
    environment = library.environment_line(pair.target.dtype)
    showcase = None
    if shows_text:
        assistant = Assistant(pair.draft, pair.draft_tokenizer, pair.target_tokenizer)
        showcase = library.complete(pair, assistant, chosen[0].content, max_new_tokens=max_new_tokens)
    if as_json:
        shown = {} if showcase is None else {"showcase": showcase.to_dict()}
        entries = [record.to_dict(pair) for record in records]
        common.print_json(found | shown | {"environment": environment, "records": entries})
    else:
        if showcase is not None:
            common.show(library.colored(showcase).append("\n"))
        for line in [*library.lines(found), *found["losses"]]:
            common.show(line, style="bold")
        num_prompts = sum(len(record.prompt_ids) for record in records if record.arm == "plain")
        kind = f"temperature {temperature:g}" if temperature else "greedy"
        num_new = max((record.max_new_tokens for record in records), default=max_new_tokens)
        length = f"{num_new} of {max_new_tokens}" if num_new < max_new_tokens else num_new  # shorter in little time
        title = f"{num_prompts} of {len(chosen)} prompts, {length} new tokens, {kind}, arms in turns"
        common.console.print(library.summary_table(records, title))
        common.show(environment)
    if not found["is_equal"]:
        raise typer.Exit(1)


def _named(name: str, summary: str, *, shows_text: bool = False, **defaults: Any) -> Callable[..., None]:

    def command(**flags: Any) -> None:
        run(**flags, shows_text=shows_text)

    signature = inspect.signature(run)
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            each.replace(default=defaults.get(each.name, each.default), kind=each.KEYWORD_ONLY)
            for each in signature.parameters.values()
            if each.name != "shows_text"
        ]
    )
    command.__name__, command.__doc__ = name, summary
    return command


bench = _named(
    "bench",
    """Compare ways to generate: equality of their outputs, then speed.

    Every output is compared with plain decoding's, and uag's also with those of uag without a draft. The exit code is 1
    if an output of uag's differs that must be equal.
    """,
)
doctor = _named(
    "doctor",
    """Measure whether a draft speeds up a target, and rank drafts.

    It is uag bench with the arms that tell it: plain decoding, uag without a draft, with prompt lookup alone, with each
    draft, and with a useless draft, which shows what drafting costs when nothing is accepted.
    """,
    arms=["plain", "uag-no-draft", "uag", "uag-lookup", "uag-useless"],
    minutes=3.0,
    num_trials=1,
)
demo = _named(
    "demo",
    """Show the speed-up on a bundled pair of models.

    The text that is shown first says by its colors where each token came from. The rest is uag bench on a few prompts:
    plain decoding, transformers' assisted generation, and uag with and without a draft.
    """,
    shows_text=True,
    arms=["plain", "uag-no-draft", "uag", "transformers"],
    num_prompts=3,
    num_trials=3,
)
