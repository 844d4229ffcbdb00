"""The two doors of uag, side by side, on the bundled pair: `uag.Assistant` and `uag.install()`.

    python examples/quickstart.py [TARGET DRAFT]

TARGET and DRAFT are hub names or folders of any two causal language models.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import uag
from uag.loading import demo_folder

PROMPT = "class Queue:\n    def __init__(self, maxsize=0):\n"


def main() -> None:
    """Complete one prompt three ways and show that the text is the same."""
    target_name, draft_name = sys.argv[1:3] if len(sys.argv) == 3 else (demo_folder("target"), demo_folder("draft"))
    target = AutoModelForCausalLM.from_pretrained(target_name, dtype="float32")
    draft = AutoModelForCausalLM.from_pretrained(draft_name, dtype="float32")
    tok, draft_tok = AutoTokenizer.from_pretrained(target_name), AutoTokenizer.from_pretrained(draft_name)
    inputs = tok(PROMPT, return_tensors="pt")
    options = {"max_new_tokens": 64, "do_sample": False}

    plain = target.generate(**inputs, **options)

    # The first door: an object that holds the draft. Nothing else in the process changes.
    assistant = uag.Assistant(draft, draft_tok, tok)
    assisted = assistant.generate(target, **inputs, **options)
    print(tok.decode(assisted[0]))
    print(assistant.stats)

    # The second door: generate's own arguments, for code that already uses them.
    uag.install()
    installed = target.generate(
        **inputs, **options, assistant_model=draft, tokenizer=tok, assistant_tokenizer=draft_tok
    )
    print(uag.last_stats(target))
    uag.uninstall()

    print("equal to plain decoding:", torch.equal(plain, assisted) and torch.equal(plain, installed))


if __name__ == "__main__":
    main()
