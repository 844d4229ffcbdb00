"""Training of a draft: rows, and drafts that cannot be trained."""

import pytest
import torch

from tests.support.calls import pair
from tests.support.models import tiny_model
from uag.distill.training import IGNORED, check_trainable, encode_rows
from uag.distill.writing import Text
from uag.errors import OptionError


def test_quantized_and_encoder_decoder_drafts_cannot_be_trained() -> None:
    draft = tiny_model("llama", 50)
    check_trainable(draft, "draft")
    layer = draft.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(OptionError, match=r"'draft' are quantized and cannot be trained: distill the float model"):
        check_trainable(draft, "draft")
    seq2seq = tiny_model("t5", 50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(OptionError, match="is an encoder-decoder"):
        check_trainable(seq2seq, "draft")


def test_rows_are_draft_ids_with_a_loss_after_the_prompt() -> None:
    _, tokenizer, draft, draft_tokenizer = pair()
    prompt, output = "one two three four", " five six seven one two"
    ids = tuple(tuple(tokenizer(text)["input_ids"]) for text in (prompt, output))
    text, empty = Text("0", ids[0], output_ids=ids[1]), Text("1", ids[0])
    (row,) = encode_rows([text, empty], draft, draft_tokenizer, tokenizer, 1024)
    assert draft_tokenizer.decode(row["input_ids"]) == tokenizer.decode([*ids[0], *ids[1]])
    start = row["labels"].count(IGNORED)
    assert 0 < start < len(row["input_ids"])
    assert prompt.startswith(draft_tokenizer.decode(row["input_ids"][:start]))
    assert row["labels"][start:] == row["input_ids"][start:]
    (cut,) = encode_rows([text], draft, draft_tokenizer, tokenizer, 9)
    assert (cut["input_ids"], cut["labels"]) == (row["input_ids"][-9:], row["labels"][-9:])
