"""Loading a pair: prompts become one left-padded batch."""

from __future__ import annotations

from types import SimpleNamespace

from uag import loading


def test_encode_pads_on_the_left_and_hides_the_padding() -> None:
    import torch

    class Tokenizer:
        pad_token_id = None
        eos_token_id = 7

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1] + [ord(character) for character in text]}

    target = SimpleNamespace(device=torch.device("cpu"))
    pair = loading.Pair(target, Tokenizer(), "t", None, None, "d")
    inputs = loading.encode(pair, ["ab", "c"])
    assert inputs["input_ids"].tolist() == [[1, 97, 98], [7, 1, 99]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]
