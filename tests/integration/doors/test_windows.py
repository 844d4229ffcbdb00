"""Every door without what only Unix has, on a console in cp1252: what of Windows can be tried elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

import uag
from tests.conftest import ROOT
from uag import loading
from uag.errors import LoadingError
from uag.gguf import is_gguf_name
from uag.loading import demo_folder

UNIX_ONLY = {
    "os": (
        *("register_at_fork", "fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "pread", "preadv", "pwrite"),
        *("getuid", "geteuid", "getgid", "getegid", "uname", "getloadavg", "sysconf", "killpg", "setsid", "getpgid"),
        *("mkfifo", "chown", "fchmod", "fchown", "lchown", "nice", "wait3", "wait4", "statvfs", "sync", "posix_spawn"),
    ),
    "signal": (
        *("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGPIPE", "SIGCHLD", "SIGTSTP", "SIGCONT"),
        *("alarm", "setitimer", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "sigwait", "siginterrupt"),
    ),
    "time": ("tzset", "clock_gettime", "clock_settime", "clock_getres"),
    "socket": ("AF_UNIX", "socketpair"),
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses")

PRELUDE = f"""
import builtins, importlib, json, sys
import huggingface_hub, rich.console, rich.table, typer, torch._dynamo, torch.multiprocessing
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM
for module, names in {UNIX_ONLY}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
original = builtins.__import__

def of_windows(name, globals=None, *others, **named):
    if name in {MODULES} and str((globals or {{}}).get("__name__")).partition(".")[0] == "uag":
        raise ImportError(name)
    return original(name, globals, *others, **named)

builtins.__import__ = of_windows
assert not any(name.partition(".")[0] == "uag" for name in sys.modules)
"""

CALLS = """
import torch, uag
from uag.loading import demo_folder
pair = uag.load_pair(demo_folder("draft"), demo_folder("draft"))
tokenizer, memory = pair.target_tokenizer, uag.Memory()
ids = torch.tensor([tokenizer(text)["input_ids"][:4] for text in ("def main(arguments):", "class Node(object):")])
options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
expected = pair.target.generate(ids, **options).tolist()
assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, tokenizer, memory=memory, num_candidate_tokens=4)
for rows in (1, 2):
    given = options | {"attention_mask": options["attention_mask"][:rows]}
    assert assistant.generate(pair.target, ids[:rows], **given).tolist()[0][: ids.shape[1] + 12] == expected[0]
assert assistant.stats.num_accepted_tokens and not assistant.stats.fallbacks, assistant.stats
assert assistant.generate(pair.target, ids, **options).tolist() == expected
memory.save(sys.argv[1])
assert len(uag.Memory.load(sys.argv[1])) == len(memory) > 12
uag.attach(pair.target, pair.draft, tokenizer=tokenizer, draft_tokenizer=pair.draft_tokenizer)
assert pair.target.generate(ids, **options).tolist() == expected
uag.detach(pair.target)
uag.install()
own = dict(assistant_model=pair.draft, tokenizer=tokenizer, assistant_tokenizer=pair.draft_tokenizer)
assert pair.target.generate(ids, **options, **own).tolist() == expected
uag.uninstall()
from uag.cli import main
for command in json.loads(sys.argv[2]):
    print(">>>", *command[:1])
    try:
        main(command)
    except SystemExit as end:
        print("<<<", end.code or 0)
"""

SMALL = ["--target", demo_folder("draft"), "--draft", demo_folder("draft"), "--max-new-tokens", "4"]
TEXT = "# 日本 naïve € “x”\ndef f("


FEW = ["--num-prompts", "1", "--max-new-tokens", "4", "--trials", "1"]
COMMANDS: list[tuple[list[str], str]] = [
    (["--version"], f"uag {uag.__version__}"),
    (["demo", *FEW], "drafted and accepted"),
    (["generate", *SMALL, "--prompt", TEXT], ""),
    (["generate", *SMALL, "--prompt", TEXT, "--json"], '"text": '),
    (["bench", SMALL[1], SMALL[3], *FEW, "--arm", "uag"], "uag"),
    (["doctor", SMALL[1], SMALL[3], *FEW], "plain"),
    (["serve", "--help"], "Usage"),
]


def test_calls_batches_the_memorys_file_every_door_and_every_command(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    commands = json.dumps([command for command, _ in COMMANDS])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + CALLS, str(tmp_path / "memory.npz"), commands],
        capture_output=True, encoding="cp1252", env=environment, timeout=500, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parts = done.stdout.split(">>> ")[1:]
    for (command, shows), part in zip(COMMANDS, parts, strict=True):
        assert part.endswith("<<< 0\n"), (part, done.stderr)
        assert command[0] == part.split()[0]
        assert shows in part, part
    assert "Traceback" not in done.stderr


class WindowsPath(PureWindowsPath):
    """A path of Windows where nothing exists."""

    def is_dir(self) -> bool:
        return False

    is_file = is_dir

    def expanduser(self) -> "WindowsPath":
        return self


@pytest.mark.parametrize(
    "name", [r"C:\models\none", r"..\models\none", r"models\none", "C:/models/none", r"\\host\none"]
)
def test_a_path_of_windows_is_never_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "Path", WindowsPath)
    with pytest.raises(LoadingError, match="no model folder"):
        loading.load_model(name, role="target")
    with pytest.raises(LoadingError, match="no model folder"):
        loading.load_tokenizer(name)
    file = f"{name}.gguf"
    assert is_gguf_name(file)
    with pytest.raises(LoadingError, match="There is no GGUF file"):
        uag.GgufDraft(file).file  # noqa: B018
