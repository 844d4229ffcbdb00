"""Assist a target that is split over several processes, with the draft on rank 0, and compare with plain decoding.

On this machine's CPU, with the bundled pair on two processes:

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 examples/tensor_parallel.py

On GPUs, one process for each:

    torchrun --nproc-per-node 4 examples/tensor_parallel.py --target TARGET --draft DRAFT --dtype bfloat16 --tokens 200

TARGET and DRAFT are hub names or folders. The draft is loaded whole, on rank 0 only.
"""

import argparse
import os
import time


def main() -> None:
    """Generate plainly and with uag on every rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", help="default: the bundled one")
    parser.add_argument("--draft", help="default: the bundled one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompt", default="class Queue:\n    def __init__(self, maxsize=0):\n")
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        raise SystemExit("start this example with torchrun --nproc-per-node 2")

    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.distributed import DistributedConfig

    import uag
    from uag.loading import demo_folder

    target_name, draft_name = args.target or demo_folder("target"), args.draft or demo_folder("draft")
    # The plan starts the process group: gloo on CPUs, nccl on GPUs.
    plan = DistributedConfig(tp_plan="auto")
    target = AutoModelForCausalLM.from_pretrained(target_name, dtype=args.dtype, distributed_config=plan).eval()
    rank = dist.get_rank()
    draft = None
    if rank == 0:
        draft = AutoModelForCausalLM.from_pretrained(draft_name, dtype=args.dtype).to(target.device).eval()
    tok, draft_tok = AutoTokenizer.from_pretrained(target_name), AutoTokenizer.from_pretrained(draft_name)
    assistant = uag.Assistant(draft, draft_tok, tok)
    inputs = tok(args.prompt, return_tensors="pt").to(target.device)

    for mode in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7}):
        options = {"max_new_tokens": args.tokens, "pad_token_id": tok.eos_token_id or 0, **mode}
        ids, seconds = [], []
        for generate in (target.generate, lambda **kwargs: assistant.generate(target, **kwargs)):
            torch.manual_seed(0)  # plain decoding needs the same seed on every rank
            dist.barrier()
            start_s = time.perf_counter()
            ids.append(generate(**inputs, **options))
            seconds.append(time.perf_counter() - start_s)
        first = ids[1].clone()
        dist.broadcast(first, 0)
        if not torch.equal(first, ids[1]):
            print(f"the ids of rank {rank} differ from those of rank 0")
        if rank == 0:
            print(tok.decode(ids[1][0]))
            print(assistant.stats.summary())
            print(f"{mode}: plain {seconds[0]:.2f} s, uag {seconds[1]:.2f} s, equal: {torch.equal(*ids)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
