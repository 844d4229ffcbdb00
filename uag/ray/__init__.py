"""Ray Data: generate text for a dataset of prompts on many workers, each with a target and a draft.

    import ray, uag.ray

    prompts = ray.data.read_json("prompts.jsonl")              # with columns id and prompt
    uag.ray.generate_dataset(prompts, "generated", num_workers=4, target="T", draft="D", max_new_tokens=200)

`generate_dataset` writes files and resumes where an earlier run stopped. In your own pipeline, pass
`BatchGenerator` to `map_batches`. Ray is imported on first use: `pip install 'ray[data]'`.
"""

from uag.ray.dataset import Summary, generate_dataset
from uag.ray.rows import BatchGenerator, row_seed

__all__ = ["BatchGenerator", "Summary", "generate_dataset", "row_seed"]
