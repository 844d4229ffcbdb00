"""A target split over several processes, drafted on rank 0: greedy and sampled, checked against plain decoding.

On this machine's CPU, with the bundled pair on two processes:

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 examples/tensor_parallel.py

On GPUs, one process for each:

    torchrun --nproc-per-node 4 examples/tensor_parallel.py --target TARGET --draft DRAFT --dtype bfloat16 --tokens 200

TARGET and DRAFT are hub names or folders. The draft is loaded whole, on rank 0 only.
"""

import argparse
import time

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

import uag
from uag.loading import demo_folder


def main() -> None:
    """Generate plainly and with uag on every rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default=demo_folder("target"))
    parser.add_argument("--draft", default=demo_folder("draft"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", default="class Queue:\n    def __init__(self, maxsize=0):\n")
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()

    # tp_plan="auto" starts the process group: gloo on CPUs, nccl on GPUs.
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=args.dtype, tp_plan="auto").eval()
    rank = dist.get_rank()
    draft = None
    if rank == 0:
        draft = AutoModelForCausalLM.from_pretrained(args.draft, dtype=args.dtype).to(target.device).eval()
    tok, draft_tok = AutoTokenizer.from_pretrained(args.target), AutoTokenizer.from_pretrained(args.draft)
    assistant = uag.Assistant(draft, draft_tok, tok)
    inputs = tok(args.prompt, return_tensors="pt").to(target.device)

    for mode in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7}):
        options = {"max_new_tokens": args.tokens, "pad_token_id": tok.eos_token_id or 0, **mode}
        ids, seconds = [], []
        for generate in (target.generate, lambda **given: assistant.generate(target, **given)):
            torch.manual_seed(0)  # the same on every rank, as plain decoding needs it
            dist.barrier()
            began = time.perf_counter()
            ids.append(generate(**inputs, **options))
            seconds.append(time.perf_counter() - began)
        first = ids[1].clone()
        dist.broadcast(first, 0)
        if not torch.equal(first, ids[1]):
            print(f"rank {rank} has other ids than rank 0")
        if rank == 0:
            print(tok.decode(ids[1][0]))
            print(assistant.stats.summary())
            print(f"{mode}: plain {seconds[0]:.2f} s, uag {seconds[1]:.2f} s, equal: {torch.equal(*ids)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
