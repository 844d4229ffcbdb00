"""`uag bench --output`: a second run reuses rows with the same settings, and measures others again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from uag import cli


def test_rows_of_the_same_settings_are_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    flags = ["--num-prompts", "1", "--trials", "1", "--arm", "uag", "--dtype", "float32", "--device", "cpu"]
    sizes = []
    for num_tokens in ("2", "4", "4"):
        with pytest.raises(SystemExit):
            cli.main(["bench", "--output", str(output), *flags, "--max-new-tokens", num_tokens])
        rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        sizes.append([row["num_output_tokens"] for row in rows])
    assert sizes == [[2, 2], [2, 2, 4, 4], [2, 2, 4, 4]]
    assert capsys.readouterr().err.count(f"{output}: 2 rows measured with other settings are not reused\n") == 2
