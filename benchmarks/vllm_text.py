"""A baseline for vLLM's `custom_class` method: a draft whose text is tokenized again."""

from typing import Any

import numpy as np
import torch

from uag.loading import load_model, load_tokenizer


class TextProposer:
    """Decodes the context, lets the draft continue it, re-encodes the text, and proposes the new ids.

    The draft is read from `additional_config["text"]`.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.num_candidates = vllm_config.speculative_config.num_speculative_tokens
        self.target_tokenizer = load_tokenizer(vllm_config.model_config.tokenizer)
        self.draft_name = vllm_config.additional_config["text"]["draft"]

    def load_model(self, _target_model: Any) -> None:
        """Load the draft."""
        self.draft = load_model(self.draft_name, dtype="float32", device="cpu")
        self.draft_tokenizer = load_tokenizer(self.draft_name)

    def propose(self, sampled_token_ids: Any, num_tokens: Any, token_ids: Any, slot_mappings: Any = None) -> Any:
        """Return candidates for every request."""
        del slot_mappings
        return [
            self._candidates(token_ids[row, : num_tokens[row]]) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    @torch.inference_mode()
    def _candidates(self, context: np.ndarray) -> list[int]:
        text = self.target_tokenizer.decode(context.tolist(), skip_special_tokens=False)
        inputs = self.draft_tokenizer(text, return_tensors="pt")
        width = inputs["input_ids"].shape[1]
        # Draft tokens may be shorter than the target's, so generate twice as many and truncate.
        continuation = self.draft.generate(**inputs, max_new_tokens=2 * self.num_candidates, do_sample=False)[0, width:]
        new = self.draft_tokenizer.decode(continuation, skip_special_tokens=True)
        encode = self.target_tokenizer.encode
        before, after = (encode(part, add_special_tokens=False) for part in (text, text + new))
        if after[: len(before)] == before:
            return after[len(before) :][: self.num_candidates]
        return encode(new, add_special_tokens=False)[: self.num_candidates]
