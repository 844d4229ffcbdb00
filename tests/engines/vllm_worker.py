"""One vLLM engine in one process: `python -m tests.engines.vllm_worker REQUEST.json RESULT.json`.

The request has the engine's options ("engine"), the prompts ("prompts", ids) and sampling options for one or more runs
("runs"); "fix_sampling" replaces the function that is wrong on CPU builds (vLLM issue 55005). The result has the ids
and log-probabilities of each prompt in each run, and vLLM's counts over all runs.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    from vllm import LLM, SamplingParams

    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if request.get("fix_sampling"):
        fix_cpu_sampling()
    llm = LLM(**request["engine"], disable_log_stats=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    runs = []
    for options in request["runs"]:
        outputs = llm.generate(prompts, SamplingParams(**options), use_tqdm=False)
        runs.append([_written(line) for output in outputs for line in output.outputs])
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    Path(sys.argv[2]).write_text(json.dumps({"runs": runs, "counts": counts}), encoding="utf-8")


def _written(line: Any) -> dict[str, Any]:
    logprobs = [step[token_id].logprob for step, token_id in zip(line.logprobs or [], line.token_ids, strict=False)]
    return {"ids": list(line.token_ids), "logprobs": logprobs, "text": line.text}


def fix_cpu_sampling() -> None:
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        sizes = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        expanded = torch.repeat_interleave(x, sizes, output_size=num_tokens)
        return expanded.masked_fill(expanded == replace_from, replace_to)

    rejection_sampler.expand_batch_to_tokens = expand


if __name__ == "__main__":
    main()
