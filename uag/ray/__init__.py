"""Ray Data: generate text for a dataset of prompts on many workers, each with a target and a draft.

    import ray, uag.ray

    prompts = ray.data.read_json("prompts.jsonl")              # with columns id and prompt
    prompts.map_batches(
        uag.ray.BatchGenerator,
        fn_constructor_kwargs={"target": "TARGET", "draft": "DRAFT", "max_new_tokens": 200},
        batch_size=8,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=4),
    ).write_parquet("generated")

docs/ray.md shows how to resume a run that stopped. Needs Ray Data: `pip install 'ray[data]'`.
"""

from uag.ray.rows import BatchGenerator
from uag.sampling import row_seed

__all__ = ["BatchGenerator", "row_seed"]
