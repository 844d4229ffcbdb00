"""uag inside vLLM: its acceptance and its speed.

    python benchmarks/vllm_bench.py acceptance   accepted tokens per target step, compared with other ways to draft
    python benchmarks/vllm_bench.py speed        output tokens per second by the number of concurrent requests

Every arm is an engine in its own process with the same settings; docs/integrations.md lists the tested builds of vLLM.
Greedy outputs are compared with plain vLLM's before anything is counted; counts are vLLM's own metrics. Arms: plain
vLLM (`plain`); uag with default settings (`uag`), always drafting the maximum (`uag-all`), and drafting while the
probability that all candidates of a request are accepted is at least 0.2 (`uag-0.2`); vLLM's own drafting across
vocabularies (`shared-strings`); drafting with re-tokenized text (`text`).

The pairs are the demo pair and, if UAG_SHARED (default ../shared) has the pair trained on Python code, that pair and
both pairs crossed.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import common
import torch

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
ARMS = ("plain", "uag", "uag-all", "uag-0.2", "shared-strings", "text")
ACCEPTANCE_COLUMNS = {
    "pair": "{pair}",
    "arm": "{arm}",
    "drafted": "{drafted_per_step:.2f}",
    "accepted": "{accepted_per_step:.2f}",
    "tokens/step": "{tokens_per_step:.2f}",
    "equal": "{equal}",
}


def main() -> None:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    of_acceptance = commands.add_parser("acceptance")
    common.add_options(of_acceptance, candidates=5, prompts=8, tokens=48)
    arms = [arm for arm in ARMS if arm != "uag"]  # its number of candidates depends on the machine
    of_acceptance.add_argument("--arms", nargs="+", choices=ARMS, default=arms)
    of_acceptance.add_argument("--temperature", type=float, default=0.0)
    of_acceptance.add_argument("--pairs", nargs="+", help="names of pairs to measure, as printed; default all")
    of_acceptance.set_defaults(run=acceptance)

    of_speed = commands.add_parser("speed")
    common.add_options(of_speed, candidates=5, tokens=64, trials=5)
    of_speed.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    of_speed.add_argument("--arms", nargs="+", choices=ARMS, default=["plain", "uag", "uag-all"])
    of_speed.add_argument("--pair", default="demo<-demo", help="as `acceptance` names it")
    of_speed.set_defaults(run=speed)

    arguments = common.parse(parser)
    arguments.run(arguments)


def acceptance(arguments: argparse.Namespace) -> None:
    """Print accepted tokens per target step for each pair and arm; greedy outputs must equal plain vLLM's."""
    title = "accepted tokens per target step and request"
    common.show(arguments, title, ACCEPTANCE_COLUMNS, _acceptance(arguments), notes=_version)


def _acceptance(arguments: argparse.Namespace) -> Iterator[common.Row]:
    arms = sorted(arguments.arms, key=lambda arm: arm != "plain")  # the others are compared with plain decoding
    for pair in common.demo_and_python(arguments.pairs):
        plain_ids = None
        for arm in arms:
            with engine(arm, pair, arguments, max_num_seqs=8, disable_log_stats=False) as pipe:
                pipe.send(arguments.prompts)
                answer = pipe.recv()
            row = {"pair": pair.name, "arm": arm, "temperature": arguments.temperature, "dtype": "float32"}
            if arm == "plain":
                plain_ids = answer["ids"]
            if plain_ids is not None and arguments.temperature == 0:
                if answer["ids"] != plain_ids:
                    raise SystemExit(f"{pair.name}: the output of {arm} differs from plain vLLM's")
                row["equal"] = True
            yield row | {"candidates": arguments.candidates} | _figures(answer)


def _figures(answer: dict[str, Any]) -> common.Row:
    keys = ("drafts", "draft_tokens", "accepted_tokens")
    counts = {key: answer["counts"].get(f"vllm:spec_decode_num_{key}", 0) for key in keys}
    # vLLM counts only steps with candidates; the number of tokens that were not accepted candidates covers the others.
    num_steps = max(counts["drafts"], sum(len(ids) - 1 for ids in answer["ids"]) - counts["accepted_tokens"])
    accepted = counts["accepted_tokens"] / num_steps
    per_step = {"accepted_per_step": accepted, "drafted_per_step": counts["draft_tokens"] / num_steps}
    return counts | {"vllm": answer["vllm"], "target_steps": num_steps, "tokens_per_step": 1 + accepted} | per_step


def _version(rows: list[common.Row]) -> Iterator[str]:
    yield f"vLLM {rows[0]['vllm']}"


def speed(arguments: argparse.Namespace) -> None:
    """Print the speed relative to plain vLLM; all engines stay loaded, and their calls are interleaved."""
    arms = list(dict.fromkeys(["plain", *arguments.arms]))
    columns = {"requests": "{requests}", "plain, tokens/s": "{plain_tokens_per_s:.0f}"}
    columns |= {arm: f"{{{arm}:.2f}}" for arm in arms[1:]}
    title = f"{arguments.pair}: speed relative to plain vLLM"
    common.show(arguments, title, columns, _speed(arguments, arms), notes=_version)


def _speed(arguments: argparse.Namespace, arms: list[str]) -> Iterator[common.Row]:
    (pair,) = common.demo_and_python([arguments.pair])
    with contextlib.ExitStack() as stack:
        options = {"max_num_seqs": max(arguments.requests), "enable_prefix_caching": False}
        engines = {arm: stack.enter_context(engine(arm, pair, arguments, **options)) for arm in arms}
        for num_requests in arguments.requests:
            seconds: dict[str, list[float]] = {arm: [] for arm in arms}
            for _ in range(arguments.trials + 1):
                answers = {}
                for arm, pipe in engines.items():
                    pipe.send(num_requests)
                    answers[arm] = pipe.recv()
                    seconds[arm].append(answers[arm]["seconds"])
                    if answers[arm]["ids"] != answers["plain"]["ids"]:
                        raise SystemExit(f"{num_requests} requests: the output of {arm} differs from plain vLLM's")
            medians = {arm: statistics.median(times[1:]) for arm, times in seconds.items()}  # the first call warms up
            rate = num_requests * arguments.tokens / medians["plain"]
            row = {"pair": pair.name, "requests": num_requests, "plain_tokens_per_s": rate, "dtype": "float32"}
            speeds = {arm: medians["plain"] / medians[arm] for arm in arms[1:]}
            yield row | speeds | {"vllm": answers["plain"]["vllm"]}


@contextlib.contextmanager
def engine(arm: str, pair: common.Folders, arguments: argparse.Namespace, **options: Any) -> Iterator[Connection]:
    """Start an engine and yield a pipe to it; `options` are arguments of `LLM`.

    For each number of prompts sent, it answers with a dict: `ids` of every request, `seconds`, vLLM's `counts`, and its
    version.
    """
    os.environ.update(ENVIRONMENT)
    context = multiprocessing.get_context("spawn")  # passes sys.path on, so that vLLM finds `vllm_text`
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        worker = (theirs, log, arm, pair, arguments, options)
        process = context.Process(target=_serve, args=worker, daemon=True)
        process.start()
        theirs.close()
        try:
            ours.recv()
            yield ours
        except EOFError:
            raise SystemExit(f"{arm} failed on {pair.name}:\n{log.read_text()[-4000:]}") from None
        finally:
            with contextlib.suppress(OSError):
                ours.send(0)
            process.join()


def _serve(
    pipe: Connection, log: Path, arm: str, pair: common.Folders, arguments: argparse.Namespace, options: dict[str, Any]
) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import vllm

    temperature = getattr(arguments, "temperature", 0.0)
    if temperature:
        _fix_cpu_sampling()
    settings = {"dtype": "float32", "max_model_len": 1024, "block_size": 32, "enforce_eager": True, "seed": 0}
    llm = vllm.LLM(pair.target, **settings, **options, **_drafting(arm, pair.draft, arguments.candidates))
    pipe.send(0)
    for num_prompts in iter(pipe.recv, 0):
        texts = common.python_texts(num_prompts)
        # One seed per request, or all would be sampled with the same noise.
        sampling = [
            vllm.SamplingParams(temperature=temperature, max_tokens=arguments.tokens, ignore_eos=True, seed=seed)
            for seed in range(len(texts))
        ]
        start_s = time.perf_counter()
        outputs = llm.generate(texts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start_s
        metrics = [] if options.get("disable_log_stats", True) else llm.get_metrics()
        counts = {metric.name: getattr(metric, "value", 0) for metric in metrics}
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        pipe.send({"ids": ids, "seconds": seconds, "counts": counts, "vllm": vllm.__version__})


def _drafting(arm: str, draft: str, num_candidates: int) -> dict[str, Any]:
    """Return the arguments of `LLM` for an arm."""
    custom = {"method": "custom_class", "num_speculative_tokens": num_candidates}
    own = custom | {"method": "draft_model", "model": draft, "use_heterogeneous_vocab": True}
    by_text = custom | {"model": "vllm_text.TextProposer"}
    by_uag = custom | {"model": "uag.vllm.Proposer"}
    settings = {"uag": {}, "uag-all": {"min_confidence": 0.0}, "uag-0.2": {"min_confidence": 0.2}}
    if arm in settings:
        return {"speculative_config": by_uag, "additional_config": {"uag": {"draft": draft} | settings[arm]}}
    return {
        "plain": {},
        "shared-strings": {"speculative_config": own},
        "text": {"speculative_config": by_text, "additional_config": {"text": {"draft": draft}}},
    }[arm]


def _fix_cpu_sampling() -> None:
    """In this process, replace the function that returns uninitialized memory on CPU builds (vLLM issue 55005)."""
    import vllm.platforms
    from vllm.v1.sample import rejection_sampler

    if not vllm.platforms.current_platform.is_cpu():
        return

    def expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        sizes = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        expanded = torch.repeat_interleave(x, sizes, output_size=num_tokens)
        return expanded.masked_fill(expanded == replace_from, replace_to)

    rejection_sampler.expand_batch_to_tokens = expand


if __name__ == "__main__":
    main()
