"""Two ways to use uag, on the bundled pair: `uag.Assistant` and `uag.install()`.

    python examples/quickstart.py [TARGET DRAFT]

TARGET and DRAFT are hub names or folders of any two causal language models.
"""

import sys

import torch

import uag

PROMPT = "class Queue:\n    def __init__(self, maxsize=0):\n"


def main() -> None:
    """Complete one prompt in three ways and check that the outputs are equal."""
    pair = uag.load_pair(*sys.argv[1:3], dtype="float32")
    target, tok, draft, draft_tok = pair.target, pair.target_tokenizer, pair.draft, pair.draft_tokenizer
    inputs = tok(PROMPT, return_tensors="pt").to(target.device)
    options = {"max_new_tokens": 64, "do_sample": False}

    plain = target.generate(**inputs, **options)

    # First way: an object that holds the draft. Nothing else in the process changes.
    assistant = uag.Assistant(draft, draft_tok, tok)
    assisted = assistant.generate(target, **inputs, **options)
    print(tok.decode(assisted[0]))
    print(assistant.stats)

    # Second way: the arguments of generate itself, for code that already uses them.
    uag.install()
    installed = target.generate(
        **inputs, **options, assistant_model=draft, tokenizer=tok, assistant_tokenizer=draft_tok
    )
    print(uag.last_stats(target))
    uag.uninstall()

    print("equal to plain decoding:", torch.equal(plain, assisted) and torch.equal(plain, installed))


if __name__ == "__main__":
    main()
