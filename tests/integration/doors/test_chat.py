"""`uag generate` without a prompt, on a real terminal: a chat with history, in plain decoding's words."""

import multiprocessing
import os
import select
import sys
from pathlib import Path

import pytest

from tests.support.served import chat_target, run_cli
from uag import cli
from uag.loading import demo_folder, load_model, load_tokenizer

NEW = 12

if sys.platform == "win32":
    pytest.skip("needs a terminal as on Unix", allow_module_level=True)


class Terminal:
    """The command line on a terminal of its own, in a fork of this process, where everything is imported."""

    def __init__(self, arguments: list[str]) -> None:
        import pty
        import termios

        self.end, inner = pty.openpty()
        termios.tcsetwinsize(inner, (50, 200))
        self.errors, errors = os.pipe()
        process = multiprocessing.get_context("fork").Process
        self.process = process(target=self._run, args=(inner, errors, arguments), daemon=True)
        self.process.start()
        os.close(inner)
        os.close(errors)

    @staticmethod
    def _run(inner: int, errors: int, arguments: list[str]) -> None:
        for place, end in enumerate((inner, inner, errors)):
            os.dup2(end, place)
        sys.stdin, sys.stdout, sys.stderr = (open(place, mode) for place, mode in enumerate("rww"))  # noqa: SIM115
        os.environ["TERM"] = "xterm-256color"
        cli.main(arguments)

    def write(self, text: str) -> None:
        os.write(self.end, text.encode())

    def read_until(self, end: str) -> str:
        """Read until the output ends with `end`, and return it with line feeds only."""
        read = ""
        while not read.endswith(end):
            assert select.select([self.end], [], [], 120)[0], f"silent after {read!r}"
            read += os.read(self.end, 4096).decode().replace("\r\n", "\n")
        return read

    def close(self) -> str:
        """Press Ctrl-D, and return what was written to standard error."""
        self.write("\x04")
        with open(self.errors) as errors:
            text = errors.read()
        self.process.join(60)
        return text


def test_two_messages_and_ctrl_d(tmp_path: Path) -> None:
    target = chat_target(tmp_path / "target")
    model, tokenizer = load_model(target), load_tokenizer(target)
    terminal = Terminal(["generate", "--target", target, "--draft", demo_folder("draft"), "--max-new-tokens", str(NEW)])
    terminal.read_until("> ")
    history = ""
    for message in ("def add(first, second):", "class Reader:"):
        history += message + "\n"
        inputs = tokenizer(history, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        expected = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        terminal.write(message + "\n")
        assert terminal.read_until("\n> ") == f"{message}\n{expected}\n> "
        history += expected + "\n"
    assert terminal.close().count("cross-tokenizer: 12 tokens in") == 2
    assert terminal.process.exitcode == 0


def test_target_without_a_chat_template_is_refused_before_the_first_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    code, _, errors = run_cli(capsys, "generate")
    assert code == 2
    assert "uag: The target's tokenizer has no chat template." in errors
