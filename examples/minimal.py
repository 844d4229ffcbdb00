"""The idea of uag in one file, without caches and without tricks.

    python examples/minimal.py

A *target* (a large model) generates text with the help of a *draft* (a small model with another tokenizer). The output
is the target's own, token for token; the draft only decides how many tokens the target gets from each pass. One round:

1. Draft. The draft reads the text so far and predicts its next token, in its own vocabulary. `project` turns that
   distribution over draft tokens into one over target tokens, by their bytes. The best target token becomes a
   candidate, its bytes are appended to the text, and the draft continues from there.
2. Verify. One pass of the target over the sequence and all candidates returns its distribution after each of them.
3. Accept. At each position, the target selects its own token. A candidate is kept if it is that token. The first
   selected token that differs replaces the candidate, and the round ends.

Every output token was selected by the target, so the output does not depend on the draft. That also holds for sampling,
once sampling is written as "draw noise, then take an argmax" (see `Noise`). The draft uses the same noise, so that it
tends to select the same token.

uag does the same with caches in both models, fewer draft passes, batches, and a number of candidates that it chooses
from measured costs. Read on in docs/how-it-works.md; `generate` below is uag/decoding/loop.py there.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

import uag
from uag.adapters import from_tokenizer

NUM_CANDIDATES = 4
"""Candidates per round."""

NUM_READ = 64
"""Number of draft tokens read from each distribution, the most probable first."""

MIN_MASS = 0.01
"""Continuations less probable than this are not expanded, since each takes a draft pass. Decrease to project more
accurately; increase to run fewer draft passes."""

PROMPT = "class Queue:\n    def __init__(self, maxsize=0):\n"


class Noise:
    """The noise of each output step, as plain sampling draws it.

    `torch.multinomial(probs, 1)` is `argmax(probs / noise)` with exponential noise from the random generator, one
    number for each token of the vocabulary. So given the noise of an output step, sampling selects by an argmax.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.draws: list[torch.Tensor] = []
        self.states: list[torch.Tensor] = []  # of the generator, after each draw

    def of_step(self, step: int) -> torch.Tensor:
        """Return the noise of an output step, [vocab_size]; each step's is drawn once, in order."""
        while len(self.draws) <= step:
            self.draws.append(torch.empty(self.vocab_size).exponential_())
            self.states.append(torch.get_rng_state())
        return self.draws[step]

    def finish(self, num_steps: int) -> None:
        """Undo the draws after the last output step, so that the generator ends as after plain sampling."""
        torch.set_rng_state(self.states[num_steps - 1])


class Draft:
    """A draft model that proposes tokens of a target with another tokenizer.

    An adapter knows the bytes of each token of a tokenizer (`token_bytes`; None for control tokens), and tokenizes
    bytes that continue a text (`encode_continuation`).
    """

    def __init__(self, model: Any, tokenizer: Any, target_tokenizer: Any) -> None:
        self.model = model
        self.adapter, self.target_adapter = from_tokenizer(tokenizer), from_tokenizer(target_tokenizer)
        texts = [text for text in self.target_adapter.token_bytes if text]
        self.open_texts = {text[:length] for text in texts for length in range(1, len(text))}

    @torch.no_grad()
    def probs(self, draft_ids: list[int]) -> torch.Tensor:
        """Return the draft's distribution of the next token, [draft_vocab_size]."""
        logits: torch.Tensor = self.model(torch.tensor([draft_ids])).logits
        return logits[0, -1].softmax(-1)

    def project(self, text: bytes) -> Counter[int]:
        """Return the probability that the draft assigns to each target token after `text`.

        A draft token decides the next target token unless a longer target token begins with its bytes: ` th` could
        become ` the` or ` this`. Such a continuation is *open*. One more draft pass splits its probability over longer
        continuations, until all that matter are decided.

        `text` may end inside a draft token: after ` th`, a draft that knows ` the` as one token does not expect `e`. So
        the draft predicts its last token again, and only continuations that agree with its bytes (`pending`) count.
        """
        ids = self.adapter.encode_continuation(text)
        context_ids = ids[:-1] or ids
        pending = self.adapter.join(ids[len(context_ids) :]) or b""
        masses: Counter[int] = Counter()
        to_expand: list[tuple[float, list[int], bytes]] = [(1.0, [], b"")]  # mass, draft ids and their bytes
        while to_expand:
            mass, after_ids, after = to_expand.pop()
            best = self.probs(context_ids + after_ids).topk(NUM_READ)
            for prob, draft_id in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                written = after + (self.adapter.token_bytes[draft_id] or b"")
                if written == after or not written.startswith(pending[: len(written)]):
                    continue  # a control token, or a contradiction to the text
                new = written[len(pending) :]
                if mass * prob >= MIN_MASS and (not new or new in self.open_texts):
                    to_expand.append((mass * prob, [*after_ids, draft_id], written))
                elif new:
                    masses[self.target_adapter.encode_continuation(new)[0]] += mass * prob
        return masses

    def candidates(self, target_ids: list[int], step: int, temperature: float, noise: Noise | None) -> list[int]:
        """Draft target tokens that follow `target_ids`; the first is the token of output step `step`."""
        ids = list(target_ids)
        while len(ids) < len(target_ids) + NUM_CANDIDATES:
            text = b"".join(self.target_adapter.token_bytes[i] or b"" for i in ids)
            scores: dict[int, float] = dict(self.project(text))
            if noise is not None:  # select as the target does, with the draft's probabilities
                of_step = noise.of_step(step + len(ids) - len(target_ids)).tolist()
                scores = {i: mass ** (1.0 / temperature) / of_step[i] for i, mass in scores.items()}
            if not scores:
                break
            ids.append(max(scores, key=lambda i: scores[i]))
        return ids[len(target_ids) :]


@torch.no_grad()
def select(target: Any, ids: list[int], num: int, step: int, temperature: float, noise: Noise | None) -> list[int]:
    """Return the tokens that the target selects after each of the last `num` tokens of `ids`, in one pass.

    The first of them is the token of output step `step`.
    """
    logits: torch.Tensor = target(torch.tensor([ids])).logits[0, -num:]
    if noise is None:
        return logits.argmax(-1).tolist()
    noises = torch.stack([noise.of_step(step + index) for index in range(num)])
    return ((logits / temperature).softmax(-1) / noises).argmax(-1).tolist()


def generate(
    target: Any, draft: Draft, prompt_ids: Sequence[int], max_new_tokens: int, temperature: float = 0.0
) -> tuple[list[int], int]:
    """Return the target's output and the number of its passes; a temperature of 0 is greedy."""
    prompt, output, num_passes = list(prompt_ids), list[int](), 0
    noise = Noise(target.config.vocab_size) if temperature else None
    eos_id = target.generation_config.eos_token_id
    while len(output) < max_new_tokens and eos_id not in output:
        candidates = draft.candidates(prompt + output, len(output), temperature, noise)
        num = len(candidates) + 1
        selected = select(target, prompt + output + candidates, num, len(output), temperature, noise)
        num_passes += 1
        num_accepted = 0
        while num_accepted < len(candidates) and candidates[num_accepted] == selected[num_accepted]:
            num_accepted += 1
        output += selected[: num_accepted + 1]  # the accepted candidates, and one more token of the target
        if eos_id in output:
            del output[output.index(eos_id) + 1 :]
        del output[max_new_tokens:]
    if noise is not None:
        noise.finish(len(output))
    return output, num_passes


def main() -> None:
    """Continue a prompt, greedily and sampled, and compare the output with plain decoding and with uag."""
    pair = uag.load_pair(device="cpu", dtype="float32")
    target, tokenizer = pair.target, pair.target_tokenizer
    draft = Draft(pair.draft, pair.draft_tokenizer, tokenizer)
    assistant = uag.Assistant(pair.draft, pair.draft_tokenizer, tokenizer)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    num_prompt_tokens = inputs["input_ids"].shape[1]
    for name, options in {"greedy": {}, "sampled": {"do_sample": True, "temperature": 0.7, "top_k": 0}}.items():
        outputs = {}
        for arm, function in {"plain": target.generate, "uag": lambda **kw: assistant.generate(target, **kw)}.items():
            torch.manual_seed(0)
            outputs[arm] = function(**inputs, **options, max_new_tokens=64)[0, num_prompt_tokens:].tolist()
        torch.manual_seed(0)
        temperature = options.get("temperature", 0.0)
        output, num_passes = generate(target, draft, inputs["input_ids"][0].tolist(), 64, temperature)
        print(f"{tokenizer.decode(output)}\n\n{name}: {len(output)} tokens in {num_passes} passes of the target.")
        print(f"Equal to plain decoding: {output == outputs['plain']}; to uag: {output == outputs['uag']}.\n")


if __name__ == "__main__":
    main()
