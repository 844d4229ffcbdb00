"""Other ways to make plain decoding fast on a CPU, which compute the target differently: their output may differ."""

from collections.abc import Callable
from typing import Any

import torch

from uag.bench import Arm
from uag.hf import passes
from uag.loading import load_model

NAMES = ("plain-bfloat16", "llama.cpp")
MAX_CONTEXT = 4096  # of llama.cpp, in tokens


def build_baseline(target: Any, name: str, gguf: str) -> Arm:
    """Return an arm.

    Args:
        target: the target.
        name: one of `NAMES`.
        gguf: a GGUF file of the target, for the arm llama.cpp.

    Raises:
        ImportError: llama-cpp-python is not installed.
    """
    if name == "plain-bfloat16":
        rough = load_model(target.name_or_path, dtype="bfloat16", device=str(target.device))
        return Arm(name, rough.generate, note="bfloat16")
    return Arm(name, llama_cpp(target, gguf), note="another engine")


def llama_cpp(target: Any, file: str) -> Callable[..., Any]:
    """Return greedy decoding of one prompt by llama.cpp, with as many threads as PyTorch has."""
    from llama_cpp import Llama

    num_threads = torch.get_num_threads()
    llama = Llama(file, n_ctx=MAX_CONTEXT, n_threads=num_threads, n_threads_batch=num_threads, verbose=False)
    eos_ids = passes.eos_ids(target.generation_config)

    def generate(input_ids: torch.Tensor, max_new_tokens: int, do_sample: bool, **_: Any) -> torch.Tensor:
        if len(input_ids) > 1 or do_sample:
            raise NotImplementedError("this arm decodes one prompt at a time, greedily")
        ids: list[int] = input_ids[0].tolist()
        last = len(ids) + max_new_tokens
        llama.reset()  # do not reuse the prompt of the previous call
        for token_id in llama.generate(list(ids), temp=0.0, repeat_penalty=1.0):
            ids.append(token_id)
            if token_id in eos_ids or len(ids) == last:
                break
        return torch.tensor([ids])

    return generate
