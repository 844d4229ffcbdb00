"""uag as a custom generation method of transformers; see the README beside this folder."""

from functools import lru_cache
from typing import Any

import uag
from uag import generate_hook


@lru_cache(1)  # the last pair keeps what it learned, and no other draft stays in memory
def _assistant(draft: Any, draft_tokenizer: Any, tokenizer: Any) -> uag.Assistant:
    return uag.Assistant(draft, draft_tokenizer, tokenizer)


def generate(
    model: Any,
    inputs: Any = None,
    assistant_model: Any = None,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    **kwargs: Any,
) -> Any:
    """Generate as `model.generate` does, with uag and a draft; without them in modes such as beam search.

    Args:
        model: the target, which transformers passes.
        inputs: see `model.generate`.
        assistant_model: the draft; a model, hub name, folder or GGUF file. None for prompt lookup.
        tokenizer: the target's tokenizer.
        assistant_tokenizer: the draft's tokenizer, if it differs.
        kwargs: see `model.generate`.
    """
    if generate_hook.other_mode(model, kwargs.get("generation_config"), kwargs):
        return model.generate(inputs, tokenizer=tokenizer, **kwargs)
    if assistant_model is None:
        assistant = uag.Assistant.from_prompt_lookup(tokenizer)
    else:
        assistant = _assistant(assistant_model, assistant_tokenizer, tokenizer)
    return assistant.generate(model, inputs, **kwargs)
