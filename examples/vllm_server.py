r"""Serve a target with vLLM's OpenAI-compatible server, with uag drafting inside it.

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
from importlib.util import find_spec


def main() -> None:
    """Build vLLM's command line, and replace this process with the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or hub name; default: the bundled one")
    parser.add_argument("--draft", help="folder or hub name; default: the bundled one")
    parser.add_argument("--candidates", type=int, default=5, help="num_speculative_tokens")
    parser.add_argument("--min-confidence", type=float, help="default: draft as many tokens as pay off")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("vllm", nargs="*", help="vLLM's own options, after --")
    arguments = parser.parse_args()
    if find_spec("vllm") is None:
        raise SystemExit("this example needs vLLM: pip install vllm")

    import torch

    from uag.loading import demo_folder

    speculative = {
        "method": "custom_class",
        "model": "uag.vllm.Proposer",
        "num_speculative_tokens": arguments.candidates,
    }
    settings = {"draft": arguments.draft or demo_folder("draft"), "min_confidence": arguments.min_confidence}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", arguments.target or demo_folder("target"),
        "--served-model-name", "target", "--port", str(arguments.port),
        "--speculative-config", json.dumps(speculative),
        "--additional-config", json.dumps({"uag": settings}),
    ]  # fmt: skip
    if not torch.cuda.is_available():
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        command += ["--dtype", "float32", "--max-model-len", "1024", "--block-size", "32", "--enforce-eager"]
    os.execv(sys.executable, command + arguments.vllm)


if __name__ == "__main__":
    main()
