"""`uag generate` without a prompt, on a real terminal: a chat with history, in plain decoding's words."""

import os
import select
import subprocess
import sys

import pytest

from tests.support.served import ENVIRONMENT, UAG, chat_target, plain_text, run_cli
from uag.loading import demo_folder, load_model, load_tokenizer

NEW = 12

if sys.platform == "win32":
    pytest.skip("needs a terminal as on Unix", allow_module_level=True)


class Terminal:
    def __init__(self, arguments: list[str]) -> None:
        import pty

        self.end, inner = pty.openpty()
        # rich takes the width of its lines from COLUMNS
        environment = ENVIRONMENT | {"TERM": "xterm-256color", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            arguments, stdin=inner, stdout=inner, stderr=subprocess.PIPE, text=True, env=environment
        )
        os.close(inner)

    def write(self, text: str) -> None:
        os.write(self.end, text.encode(errors="surrogateescape"))

    def read_until(self, end: str) -> str:
        read = ""
        while not read.endswith(end):
            assert select.select([self.end], [], [], 120)[0], f"silent after {read!r}"
            read += os.read(self.end, 4096).decode(errors="replace").replace("\r\n", "\n")
        return read


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_target(tmp_path_factory.mktemp("chat") / "target", num_hidden_layers=4)


def test_two_messages_and_ctrl_d(target: str) -> None:
    model, tokenizer = load_model(target), load_tokenizer(target)
    flags = ["--target", target, "--draft", demo_folder("draft"), "--max-new-tokens", str(NEW)]
    terminal = Terminal([*UAG, "generate", *flags])
    terminal.read_until("> ")
    history = ""
    for message in ("def add(first, second):", "class Reader:"):
        history += message + "\n"
        expected = plain_text(model, tokenizer, history, max_new_tokens=NEW, do_sample=False)
        terminal.write(message + "\n")
        assert terminal.read_until("\n> ") == f"{message}\n{expected}\n> "
        history += expected + "\n"
        terminal.write("\udcff\n")  # which is taken back
        terminal.read_until("\n> ")
    terminal.write("\x04")
    _, errors = terminal.process.communicate(timeout=60)
    assert terminal.process.returncode == 0
    assert errors.count("cross-tokenizer: 12 tokens in") == errors.count("not a text that UTF-8 can encode") == 2


def test_a_target_without_a_chat_template(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    code, _, errors = run_cli(capsys, "generate")
    assert code == 2
    assert "uag: The target's tokenizer has no chat template." in errors
