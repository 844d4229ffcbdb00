"""Generate text for a file of prompts with Ray Data, on several workers. A run that was stopped can be resumed.

    OMP_NUM_THREADS=1 python examples/ray_batch.py prompts.jsonl generated --workers 2 --tokens 32

    python examples/ray_batch.py prompts.jsonl generated --target TARGET --draft DRAFT --workers 8 --gpus 1 --tokens 200

The first command runs the bundled pair on this machine's CPU, the second one a GPU for each worker, on all machines of
a Ray cluster that share the folder. prompts.jsonl has one line {"id": ..., "prompt": ...} per row. Run the same command
again to resume. Needs Ray Data: pip install "ray[data]".
"""

import argparse
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Generate the rows that are not written yet, and show some results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("prompts", help="JSON lines with id and prompt")
    parser.add_argument("output", help="folder for parquet files")
    parser.add_argument("--target", help="hub name or folder; default: the demo's")
    parser.add_argument("--draft", help="hub name or folder; default: the demo's")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of each worker")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    args = parser.parse_args()
    if find_spec("ray") is None:
        raise SystemExit('this example needs Ray Data: pip install "ray[data]"')

    import ray.data
    from ray.data.checkpoint import CheckpointConfig

    import uag.ray

    output = Path(args.output).resolve()
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=f"{output}.progress", delete_checkpoint_on_success=False
    )
    sampling = {"do_sample": True, "temperature": args.temperature} if args.temperature else {"do_sample": False}
    models = {"target": args.target, "draft": args.draft}
    rows = ray.data.read_json(args.prompts).repartition(target_num_rows_per_block=8)
    rows.map_batches(
        uag.ray.BatchGenerator,
        fn_constructor_kwargs={**models, "max_new_tokens": args.tokens, **sampling},
        batch_size=8,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=args.workers),
        num_cpus=0,  # leaves all CPUs to the tasks that read and write
        scheduling_strategy="SPREAD",
        num_gpus=args.gpus,
    ).write_parquet(str(output))
    ray.data.DataContext.get_current().checkpoint_config = None
    for row in ray.data.read_parquet(str(output)).take(3):
        print(f"--- {row['id']}: {row['generation_stats']}")
        print(row["prompt"] + (row["generated_text"] or f"[{row['generation_error']}]"))


if __name__ == "__main__":
    main()
