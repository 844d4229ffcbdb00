"""`uag serve`: an OpenAI-compatible server for a target and a draft."""

import logging
import os
import sys
from typing import Annotated

import typer

from uag.cli import common
from uag.errors import OptionError


def serve(
    target: common.TargetArgument = None,
    draft: common.Draft = None,
    misplaced: Annotated[str | None, typer.Option("--target", hidden=True)] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Refuse longer prompts; default: the target's positions.")
    ] = None,
    dtype: common.Dtype = None,
    device: common.Device = None,
    compile_draft: common.CompileDraft = False,
    draft_independent: common.DraftIndependent = False,
) -> None:
    """Serve a target to clients of OpenAI's API.

    The server is transformers' own, assisted by a draft. Requests run one after another. The log has a line per
    request, and GET /v1/uag/stats returns totals. Ctrl-C ends the server.
    """
    if misplaced is not None:
        raise OptionError("This command takes the target without --target: uag serve TARGET --draft DRAFT.")
    common.begin(target, draft)
    from uag.loading import demo_folder
    from uag.serving import Server

    server = Server(
        target or demo_folder("target"),
        draft or demo_folder("draft"),
        host=host,
        port=port,
        dtype=dtype,
        device=device,
        max_prompt_tokens=max_prompt_tokens,
        compile_draft=compile_draft,
        draft_independent=draft_independent,
    )
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("uag").setLevel(logging.INFO)
    common.report(f"serving {server.target}; totals: {server.url}/v1/uag/stats; Ctrl-C ends it; try:")
    common.report(server.example())
    server.run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Python would free every module and tensor one by one, which takes seconds
