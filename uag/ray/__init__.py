"""Ray Data: generate for a dataset of prompts on many workers, each with a target and a draft.

    import ray, uag.ray

    prompts = ray.data.read_json("prompts.jsonl")              # columns id and prompt
    uag.ray.generate_dataset(prompts, "generated", num_workers=4, target="T", draft="D", max_new_tokens=200)

`generate_dataset` writes files and resumes where an earlier run stopped. In a pipeline of your own, pass
`BatchGenerator` to `map_batches`. Ray is imported when a dataset is run: `pip install 'uag[ray]'`.
"""

from uag.ray.dataset import Summary, generate_dataset, import_ray
from uag.ray.parts import Parts
from uag.ray.rows import BatchGenerator, row_seed

__all__ = ["BatchGenerator", "Parts", "Summary", "generate_dataset", "import_ray", "row_seed"]
