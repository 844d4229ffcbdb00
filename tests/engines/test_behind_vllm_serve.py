"""In vLLM's server with two engines, in one launch and in two, the ids equal plain vLLM's."""

from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm_runs import DEMO, GREEDY, drafting, plain, prompts
from tests.engines.vllm_servers import free_port, serving

pytestmark = [pytest.mark.engines, pytest.mark.slow]
pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)

NUM_ENGINES = 2
NUM_CLIENTS = 16
NUM_ROUNDS = 4
"""Number of requests for each of the eight prompts."""

COMMON: dict[str, Any] = {
    "model": DEMO[0], "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "block_size": 32,
    "enforce_eager": None, "seed": 0, "data_parallel_size": NUM_ENGINES,
}  # fmt: skip


def one_launch() -> list[dict[str, Any]]:
    return [{}]


def two_launches() -> list[dict[str, Any]]:
    """As on two machines: each launch has one engine, and they communicate over TCP (loopback here)."""
    address = {"data_parallel_address": "127.0.0.1", "data_parallel_rpc_port": free_port()}
    shared = {"data_parallel_size_local": 1, **address}
    return [shared, {**shared, "headless": None, "data_parallel_start_rank": 1}]


@pytest.mark.parametrize("nodes", [one_launch, two_launches])
def test_the_same_ids_from_two_engines_and_many_clients(nodes: Any, tmp_path: Path) -> None:
    target, draft = DEMO
    expected = [row["ids"] for row in plain(tmp_path, target)["runs"][0]]
    with serving(tmp_path, nodes(), **COMMON, **drafting(draft)) as server:
        result = server.complete([*prompts(target)] * NUM_ROUNDS, NUM_CLIENTS, **GREEDY)
        assert result == expected * NUM_ROUNDS
        written, accepted = (server.counts(name) for name in ("generation_tokens", "spec_decode_num_accepted_tokens"))
        logs = server.logs()
    assert sorted(written) == sorted(accepted) == list(range(NUM_ENGINES))
    assert sum(written.values()) == sum(map(len, result))
    assert all(accepted[engine] > 0.2 * written[engine] > 0 for engine in accepted), (accepted, written)
    assert [log.count("uag drafts with") for log in logs] == [NUM_ENGINES // len(logs)] * len(logs)
    assert not any("uag could not draft" in log for log in logs)
