"""The demo target with a chat template, its plain text, and command lines in this process and in another one."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from uag import cli
from uag.cli import common
from uag.loading import demo_folder

TEMPLATE = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
UAG = [sys.executable, "-c", "from uag.cli import main; main()"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def chat_target(folder: Path, **config: Any) -> str:
    """Copy the demo target with a chat template and changed values of its config."""
    shutil.copytree(demo_folder("target"), folder)
    for name, values in (("config.json", config), ("tokenizer_config.json", {"chat_template": TEMPLATE})):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return str(folder)


def plain_text(model: Any, tokenizer: Any, prompt: str, /, **options: Any) -> str:
    """Return the text that plain decoding writes after a prompt; `tokenizer` may also be among the options."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, **options)
    text: str = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    common.error_console.quiet = False  # an earlier call in this process may have had --json
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    return int(caught.value.code or 0), *capsys.readouterr()
