"""Other ways to make plain decoding fast on a CPU: bfloat16 and llama.cpp."""

from collections.abc import Callable
from typing import Any

import torch

from uag.hf import passes
from uag.loading import load_model

_MAX_CONTEXT = 4096
"""Context of llama.cpp in tokens. Increase for longer prompts; decrease to save memory."""

Generate = Callable[..., Any]


def in_bfloat16(target: Any) -> Generate:
    """Return `generate` of the target, reloaded in bfloat16."""
    generate: Generate = load_model(target.name_or_path, dtype="bfloat16", device=str(target.device)).generate
    return generate


def llama_cpp(target: Any, file: str) -> Generate:
    """Return greedy decoding of one prompt by llama.cpp, with as many threads as PyTorch has.

    Raises:
        ImportError: llama-cpp-python is not installed.
    """
    from llama_cpp import Llama

    num_threads = torch.get_num_threads()
    llama = Llama(file, n_ctx=_MAX_CONTEXT, n_threads=num_threads, n_threads_batch=num_threads, verbose=False)
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
