"""Use a GGUF file as the draft of a transformers target, and time both ways of decoding.

    python examples/gguf_draft.py TARGET draft.gguf ["a prompt"]

TARGET is a folder or hub name; draft.gguf is a local file, or repo:file.gguf on the hub. The two need not share a
tokenizer: the file contains the draft's.
"""

import sys
import time

PROMPT = 'def running_mean(values, width):\n    """Return the mean of every window of `width` values."""\n'


def main() -> None:
    """Complete a prompt plainly, then twice with the draft: the first of these calls learns what passes cost."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import uag

    target_name, draft_name, *rest = sys.argv[1:]
    target = AutoModelForCausalLM.from_pretrained(target_name, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(target_name)
    inputs = tokenizer(rest[0] if rest else PROMPT, return_tensors="pt")
    options = {"max_new_tokens": 64, "do_sample": False}

    # To change the defaults: uag.GgufDraft(draft_name, threads=..., context=..., gpu_layers=...)
    assistant = uag.Assistant(draft_name, tokenizer=tokenizer)

    start_s = time.perf_counter()
    plain = target.generate(**inputs, **options)
    plain_s = time.perf_counter() - start_s
    print(tokenizer.decode(plain[0]))
    for _ in range(2):
        start_s = time.perf_counter()
        assisted = assistant.generate(target, **inputs, **options)
        print(f"plain {plain_s:.2f} s, with the draft {time.perf_counter() - start_s:.2f} s")
        print(assistant.stats.summary())
    print("equal to plain decoding:", torch.equal(plain, assisted))


if __name__ == "__main__":
    main()
