"""Generate text for a file of prompts with Ray Data, on several workers and into files that allow resuming.

On this machine's CPU, with the bundled pair:

    OMP_NUM_THREADS=1 python examples/ray_batch.py generated --workers 2 --tokens 32

On GPUs, one for each worker, on every machine of a Ray cluster (`ray start` on each):

    python examples/ray_batch.py generated --prompts prompts.jsonl --target TARGET --draft DRAFT \
        --workers 8 --gpus 1 --tokens 200

prompts.jsonl has one line {"id": ..., "prompt": ...} per row. The run can be stopped at any time; when it is started
again, written rows are skipped. Needs Ray Data: pip install "ray[data]".
"""

import argparse
from importlib.util import find_spec


def main() -> None:
    """Generate the rows that are not written yet, and show some results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", help="folder for parquet files")
    parser.add_argument("--prompts", help="JSON lines with id and prompt; default: the demo's held-out prompts")
    parser.add_argument("--target", help="hub name or folder; default: the demo's")
    parser.add_argument("--draft", help="hub name or folder; default: the demo's")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of each worker")
    parser.add_argument("--batch", type=int, default=8, help="rows that a worker takes at a time")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if find_spec("ray") is None:
        raise SystemExit('this example needs Ray Data: pip install "ray[data]"')

    import ray.data

    import uag.ray
    from uag.bench import heldout_prompts

    if args.prompts:
        dataset = ray.data.read_json(args.prompts, lines=True)
    else:
        dataset = ray.data.from_items([{"id": p.prompt_id, "prompt": p.text} for p in heldout_prompts()])
    sampling = {"do_sample": True, "temperature": args.temperature} if args.temperature else {"do_sample": False}
    summary = uag.ray.generate_dataset(
        dataset,
        args.output,
        target=args.target,
        draft=args.draft,
        num_workers=args.workers,
        batch_size=args.batch,
        worker_options={"num_gpus": args.gpus} if args.gpus else None,
        max_new_tokens=args.tokens,
        seed=args.seed,
        **sampling,
    )
    print(summary)
    written = ray.data.read_parquet(args.output)
    for row in written.take(3):
        print(f"--- {row['id']}: {row['generation_stats']}")
        print(row["prompt"] + (row["generated_text"] or f"[{row['generation_error']}]"))


if __name__ == "__main__":
    main()
