r"""Serve a target with vLLM's OpenAI-compatible server, uag drafting inside it.

    python examples/vllm_server.py                                    the bundled pair, on a CPU
    python examples/vllm_server.py --target T --draft D -- --tensor-parallel-size 2 --gpu-memory-utilization 0.8

Everything after `--` goes to vLLM. Then, from another shell:

    curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \
        -d '{"model": "target", "prompt": "def read_lines(path):\n", "max_tokens": 48, "temperature": 0}'
"""

import argparse
import json
import os
import sys

import torch

from uag.loading import demo_folder


def main() -> None:
    """Put the command line together and become the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=demo_folder("target"))
    parser.add_argument("--draft", default=demo_folder("draft"))
    parser.add_argument("--candidates", type=int, default=5, help="num_speculative_tokens")
    parser.add_argument("--min-confidence", type=float, help="default: what the engine's speed repays")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("vllm", nargs="*", help="options of vLLM's own, after --")
    arguments = parser.parse_args()

    speculative = {
        "method": "custom_class",
        "model": "uag.vllm.Proposer",
        "num_speculative_tokens": arguments.candidates,
    }
    uag = {"draft": arguments.draft, "min_confidence": arguments.min_confidence}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", arguments.target, "--served-model-name", "target", "--port", str(arguments.port),
        "--speculative-config", json.dumps(speculative),
        "--additional-config", json.dumps({"uag": uag}),
    ]  # fmt: skip
    if not torch.cuda.is_available():
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        command += ["--dtype", "float32", "--max-model-len", "1024", "--block-size", "32", "--enforce-eager"]
    os.execv(sys.executable, command + arguments.vllm)


if __name__ == "__main__":
    main()
