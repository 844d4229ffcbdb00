"""uag inside vLLM, and its drafting for vLLM without an engine.

    python benchmarks/vllm_bench.py acceptance   accepted tokens per target step, compared with other ways to draft
    python benchmarks/vllm_bench.py speed        output tokens per second by the number of concurrent requests
    python benchmarks/vllm_bench.py replay       proposers replayed on existing outputs of the target
    python benchmarks/vllm_bench.py propose      processor time of a `propose` call by the number of requests

`acceptance` and `speed` run every arm as an engine in its own process with the same settings, and need vLLM
(docs/vllm.md lists the tested builds). Greedy outputs are compared with plain vLLM's before anything is counted; counts
are vLLM's own metrics. The other commands run anywhere, best with OMP_NUM_THREADS=1.

`replay` computes the target's outputs once. Then each proposer is called as vLLM would call it: candidates that agree
with the output count as accepted, and one more token is taken from the output. For sampled outputs this equals vLLM's
rejection sampling of one-hot proposals, on the same samples for every proposer. Proposers are the drafter of `uag.vllm`
at several `min_confidence`, and re-tokenized text. `speed` is uag's speed relative to plain decoding if a draft pass
costs a share of a target step and everything else is free: `(1 + accepted) / (1 + share x passes)`, as the geometric
mean over pairs.

`propose` runs rounds on vLLM's buffers in which each held-out prompt advances by one token, the first candidate if
there is one. The first round, which reads the prompts, is shown separately. Times are processor times of this process,
so other work on the machine does not count.

The pairs are the demo pair and, if UAG_SHARED (default ../shared) has the pair trained on Python code, that pair and
both pairs crossed.
"""

import argparse

import vllm_calls
import vllm_engine
from common import add_options, parse


def main() -> None:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    acceptance = commands.add_parser("acceptance")
    add_options(acceptance, candidates=5, prompts=8, tokens=48)
    arms = [arm for arm in vllm_engine.ARMS if arm != "uag"]  # its number of candidates depends on the machine
    acceptance.add_argument("--arms", nargs="+", choices=vllm_engine.ARMS, default=arms)
    acceptance.set_defaults(run=vllm_engine.acceptance)

    speed = commands.add_parser("speed")
    add_options(speed, candidates=5, tokens=64, trials=5)
    speed.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16])
    speed.add_argument("--arms", nargs="+", choices=vllm_engine.ARMS, default=["plain", "uag", "uag-all"])
    speed.add_argument("--pair", default="demo<-demo", help="as `acceptance` names it")
    speed.set_defaults(run=vllm_engine.speed)

    replay = commands.add_parser("replay")
    add_options(replay, candidates=5, prompts=40, tokens=48, samples=1)
    replay.add_argument("--confidences", type=float, nargs="+", default=[0, 0.05, 0.1, 0.2, 0.3, 0.4])
    replay.add_argument("--no-text", action="store_true", help="skip re-tokenized text, which takes longest")
    replay.set_defaults(run=vllm_calls.replay)

    for command in (acceptance, replay):
        command.add_argument("--temperature", type=float, default=0.0)
        command.add_argument("--pairs", nargs="+", help="names of pairs to measure, as printed; default all")

    propose = commands.add_parser("propose")
    add_options(propose, candidates=5, rounds=6, prompt_tokens=128)
    propose.add_argument("--requests", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    propose.set_defaults(run=vllm_calls.propose)

    arguments = parse(parser)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
