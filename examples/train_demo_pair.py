"""Train the bundled demo pair: a deep target and a shallow draft with another tokenizer, on CPU.

The text is the Python standard library's own source, without comments and docstrings (a narrow domain is what small
models can agree on). The target is grown: a shallow stack is trained first, then every layer is doubled, twice, since
a pass at batch 1 costs time per layer while training costs time per weight. The draft learns the library first and
then mostly what the target itself writes.

    python examples/train_demo_pair.py --out uag/demo --work /tmp/demo-work          # everything
    python examples/train_demo_pair.py --out uag/demo --work /tmp/demo-work --scale 0.05  # a smoke run

Stages (`--stage`) can be run alone, in this order; each continues from its last checkpoint in `--work`.
The same Python, package versions and thread count give the same pair.
"""

import argparse
import ast
import hashlib
import io
import itertools
import json
import math
import os
import random
import sysconfig
import time
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # the Unigram trainer sums in thread order

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

SKIPPED_FOLDERS = {
    *("test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data", "__pycache__"),
    *("ensurepip", "__phello__", "lib-dynload", "macholib", "msilib"),
}
SKIPPED_FILES = {"html/entities.py", "this.py", "antigravity.py", "opcode.py", "token.py", "keyword.py", "symbol.py"}
HELD_OUT = (
    *("asyncio/locks.py", "asyncio/queues.py", "bdb.py", "cmd.py", "concurrent/futures/thread.py", "configparser.py"),
    *("csv.py", "email/header.py", "fnmatch.py", "getopt.py", "http/cookies.py", "importlib/abc.py", "json/decoder.py"),
    *("json/encoder.py", "logging/handlers.py", "netrc.py", "queue.py", "sched.py", "shelve.py", "statistics.py"),
    *("textwrap.py", "urllib/robotparser.py", "wsgiref/handlers.py", "xml/dom/pulldom.py", "zipapp.py"),
)
# Both tokenizers cut here. A run of spaces (indentation) is a piece, a single space goes with what follows.
PIECES = r"\n+| {2,}|\t+|[ ._]?\p{L}+| ?\d| ?[^\s\p{L}\d]+|\s"
TARGET_VOCAB, DRAFT_VOCAB = 1536, 3072
TARGET_EOS, DRAFT_EOS = "<|endoftext|>", "<|eos|>"
NEVER = -1000.0  # score of Unigram pieces that text must not match, such as a literal "<0x41>"
WINDOW, BATCH = 256, 16
NUM_LAYERS = (9, 18, 36)
TARGET_STEPS = (540, 20, 12)
DRAFT_STEPS = (600, 900)
NUM_TEXTS, NUM_PROMPT, NUM_WRITTEN = 9472, 48, 112  # texts by the target: its tokens of prompt and of its own
SEED = 20


# ------------------------------------------------------------------------------------------------ text


HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One library module: its path, its code and, for each line of the code, the line number in the file."""

    name: str
    text: str
    lines: tuple[int, ...]


def strip_prose(source: str) -> tuple[str, tuple[int, ...]]:
    """Remove comments and docstrings; also return the file's line number of each line that is left."""
    lines = source.splitlines()
    gone: set[int] = set()
    for body in (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, HasDocstring)):
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            start, end = first.lineno - 1, first.end_lineno or first.lineno
            if len(body) == 1:
                lines[start] = lines[start][: first.col_offset] + "pass"
                gone.update(range(start + 1, end))
            elif body[1].lineno > end:
                gone.update(range(start, end))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start[0] - 1, token.start[1]
        if token.type == tokenize.COMMENT and row not in gone:
            lines[row] = lines[row][:column].rstrip()
            if not lines[row]:
                gone.add(row)
    kept: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        blanks = sum(not text for _, text in kept[-2:]) if kept else 2
        if number not in gone and (line.strip() or blanks < 2):
            kept.append((number + 1, line.rstrip()))
    return "\n".join(line for _, line in kept).rstrip() + "\n", tuple(number for number, _ in kept)


def library() -> list[Module]:
    """Read the standard library's modules in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        name = relative.as_posix()
        if SKIPPED_FOLDERS.intersection(relative.parts) or name in SKIPPED_FILES or name.startswith("config-"):
            continue
        text, lines = strip_prose(path.read_text(encoding="utf-8", errors="replace"))
        if len(text) > 200:
            modules.append(Module(name, text, lines))
    return modules


def split_library() -> tuple[list[Module], list[Module]]:
    """Return the modules to train on and the held-out ones."""
    modules = library()
    return [m for m in modules if m.name not in HELD_OUT], [m for m in modules if m.name in HELD_OUT]


# ------------------------------------------------------------------------------------------ tokenizers


def train_target_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a ByteLevel BPE: exact on any text."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TARGET_VOCAB,
        special_tokens=[TARGET_EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_draft_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a Unigram with byte fallback: no normalizer and no space mark, so it is exact on any text too."""
    learner = Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    trainer = trainers.UnigramTrainer(
        vocab_size=DRAFT_VOCAB, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False, max_piece_length=24
    )
    learner.train_from_iterator(texts, trainer)
    learned = [(piece, score) for piece, score in json.loads(learner.to_str())["model"]["vocab"] if piece != "<unk>"]

    never = ["<unk>", DRAFT_EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = {piece: NEVER for piece in never}
    floor = min(score for _, score in learned) - 1
    characters = {"\n", "\t", "\r", *map(chr, range(32, 127))}
    learned += [(character, floor) for character in sorted(characters - {piece for piece, _ in learned})]
    single = [item for item in learned if item[0] in characters]
    longer = sorted((item for item in learned if len(item[0]) > 1), key=lambda item: (-item[1], item[0]))
    pieces.update(single)
    pieces.update(longer[: DRAFT_VOCAB - len(pieces)])
    tokenizer = Tokenizer(models.Unigram(list(pieces.items()), unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(DRAFT_EOS, special=True, normalized=False)])
    return tokenizer


def tokenizers_stage(work: Path) -> None:
    """Train both tokenizers and write them to the work folder."""
    train, _ = split_library()
    texts = [module.text for module in train]
    for name, tokenizer in (("target", train_target_tokenizer(texts)), ("draft", train_draft_tokenizer(texts))):
        tokenizer.save(str(work / f"{name}-tokenizer.json"))
        num_tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
        print(
            f"{name} tokenizer: {tokenizer.get_vocab_size()} ids, {num_tokens:,} tokens for "
            f"{sum(map(len, texts)):,} characters"
        )


def encode_modules(tokenizer: Tokenizer, eos: str, modules: list[Module]) -> Tensor:
    """Return all modules as one row of ids, each between two EOS: [num_tokens], int64."""
    eos_id = tokenizer.token_to_id(eos)
    ids = [eos_id]
    for module in modules:
        ids += [*tokenizer.encode(module.text).ids, eos_id]
    return torch.tensor(ids)


# -------------------------------------------------------------------------------------------- training


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Jordan 2024), batched over weights of one shape, in float32."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights once."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                grads = torch.stack([weight.grad for weight in weights if weight.grad is not None])
                state = self.state[weights[0]]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(grads)
                state["momentum"].lerp_(grads, 1 - group["momentum"])
                update = orthogonal(grads.lerp(state["momentum"], group["momentum"]))
                scale = -group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, change in zip(weights, update, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Push all singular values of each matrix towards 1 by five Newton-Schulz steps: [num, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def fit(
    model: LlamaForCausalLM,
    batch_at: Callable[[int], Tensor],
    rate_at: Callable[[int], float],
    steps: range,
    checkpoint: Path,
) -> None:
    """Train for the given steps, in place; go on from `checkpoint` if it is there.

    `batch_at(step)` gives ids [rows, length + 1] with -1 behind a row's end; it depends on the step alone, so that a
    run that was stopped and continued sees the same batches.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0)]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    start = steps.start
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        start = saved["step"]
    for layer in model.model.layers:
        layer.compile()
    model.train()
    began, seen, losses = time.perf_counter(), 0, []
    for step in range(start, steps.stop):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_at(step)
        ids = batch_at(step)
        logits = model(ids[:, :-1].clamp_min(0), use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seen += ids.numel()
        if (step + 1) % 25 == 0 or step + 1 == steps.stop:
            speed = seen / (time.perf_counter() - began)
            print(f"step {step + 1} loss {sum(losses) / len(losses):.3f} {speed:.0f} tokens/s", flush=True)
            losses.clear()
        if (step + 1) % 25 == 0 or step + 1 == steps.stop:
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step + 1}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    model.eval()


def trapezoid(num_steps: int, decay_share: float) -> Callable[[int], float]:
    """Warm up over 40 steps, stay, then fall to 2 % over the last `decay_share` of the steps."""
    return lambda step: min((step + 1) / 40, 1.0, max(0.02, (num_steps - step) / (decay_share * num_steps)))


def windows(ids: Tensor, step: int, rows: int, length: int) -> Tensor:
    """Cut `rows` random windows: [rows, length + 1], int64."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    starts = torch.randint(len(ids) - length - 1, (rows, 1), generator=generator)
    return ids[starts + torch.arange(length + 1)]


@torch.inference_mode()
def bits_per_byte(model: LlamaForCausalLM, ids: Tensor, num_bytes: int) -> float:
    """Return the model's loss on a long row of ids, in windows of 512, in bits per byte of its text."""
    total = 0.0
    for start in range(0, len(ids) - 1, 512):
        row = ids[start : start + 513]
        logits = model(row[None, :-1], use_cache=False).logits[0]
        total += F.cross_entropy(logits, row[1:], reduction="sum").item()
    return total / math.log(2) / num_bytes


# ---------------------------------------------------------------------------------------------- target


def target_config(num_layers: int) -> LlamaConfig:
    """Return the target's shape at one depth."""
    return LlamaConfig(
        vocab_size=TARGET_VOCAB, hidden_size=128, intermediate_size=256, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=8192,
        bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip


def draft_config() -> LlamaConfig:
    """Return the draft's shape."""
    return LlamaConfig(
        vocab_size=DRAFT_VOCAB, hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=6, tie_word_embeddings=True, max_position_embeddings=8192, bos_token_id=1, eos_token_id=1,
        pad_token_id=None,
    )  # fmt: skip


def doubled(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model with a copy of each layer behind it that adds nothing yet: the same function, twice as deep."""
    grown = LlamaForCausalLM(target_config(2 * model.config.num_hidden_layers))
    grown.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    grown.model.norm.load_state_dict(model.model.norm.state_dict())
    for index, layer in enumerate(model.model.layers):
        for copy in grown.model.layers[2 * index : 2 * index + 2]:
            copy.load_state_dict(layer.state_dict())
        torch.nn.init.zeros_(grown.model.layers[2 * index + 1].self_attn.o_proj.weight)
        torch.nn.init.zeros_(grown.model.layers[2 * index + 1].mlp.down_proj.weight)
    return grown


def target_stage(work: Path, scale: float) -> None:
    """Train the target: shallow first, then doubled and trained on, twice."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    train, held_out = split_library()
    ids = encode_modules(tokenizer, TARGET_EOS, train)
    held_out_ids = encode_modules(tokenizer, TARGET_EOS, held_out)
    num_bytes = sum(len(module.text.encode()) for module in held_out)
    print(f"{len(train)} modules, {len(ids):,} tokens; held out {len(held_out)} modules, {len(held_out_ids):,} tokens")

    num_steps = [math.ceil(scale * steps) for steps in TARGET_STEPS]
    rate_at = trapezoid(sum(num_steps), decay_share=0.313)

    def batch_at(step: int) -> Tensor:
        is_long = step >= num_steps[0] and step % 8 == 7  # a few long windows for far positions
        return windows(ids, step, BATCH // 4, 4 * WINDOW) if is_long else windows(ids, step, BATCH, WINDOW)

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(target_config(NUM_LAYERS[0]))
    done = 0
    for index, steps in enumerate(num_steps):
        if index:
            model = doubled(model)
        fit(model, batch_at, rate_at, range(done, done + steps), work / f"target-{model.config.num_hidden_layers}.pt")
        done += steps
        print(f"{model.config.num_hidden_layers} layers: {bits_per_byte(model, held_out_ids, num_bytes):.3f} bits/byte")
    model.save_pretrained(work / "target")


# --------------------------------------------------------------------------------- text by the target


@torch.inference_mode()
def write_on(model: LlamaForCausalLM, prompts: Tensor, num_new: int, temperatures: Tensor, seed: int) -> Tensor:
    """Continue a batch of prompts of one length: [rows, prompt_length + num_new].

    Args:
        model: The target.
        prompts: [rows, prompt_length], int64.
        num_new: Tokens to write.
        temperatures: [rows]; 0 is greedy.
        seed: Seed of the sampling.

    A loop of its own, since the library's dynamic cache copies all keys and values at every step.
    """
    config = model.config
    rows, prompt_length = prompts.shape
    length = prompt_length + num_new
    head_dim = config.hidden_size // config.num_attention_heads
    shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, length, head_dim)
    cache = torch.empty(shape)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.cat([prompts, prompts.new_zeros(rows, num_new)], dim=1)
    start = 0
    for end in range(prompt_length, length):
        x = model.model.embed_tokens(ids[:, start:end])
        cos, sin = model.model.rotary_emb(x, torch.arange(start, end)[None])
        for layer, (keys, values) in zip(model.model.layers, cache, strict=True):
            attention = layer.self_attn
            h = layer.input_layernorm(x)
            q, k, v = (
                project(h).view(rows, end - start, -1, head_dim).transpose(1, 2)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            if start:  # query heads of one key head become query positions: no key is copied
                q = q.view(rows, config.num_key_value_heads, -1, head_dim)
                mixed = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end])
                mixed = mixed.view(rows, -1, 1, head_dim)
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = model.lm_head(model.model.norm(x[:, -1]))
        probs = (logits / temperatures.clamp_min(1e-3)[:, None]).softmax(-1)
        noise = torch.empty_like(probs).exponential_(generator=generator)
        noise[temperatures == 0] = 1.0
        ids[:, end] = (probs / noise).argmax(-1)
        start = end
    return ids


def text_stage(work: Path, scale: float) -> None:
    """Let the target go on from random places of the library, greedily and at several temperatures."""
    tokenizer = Tokenizer.from_file(str(work / "target-tokenizer.json"))
    train, _ = split_library()
    ids = encode_modules(tokenizer, TARGET_EOS, train)
    model = LlamaForCausalLM.from_pretrained(work / "target").eval()
    folder = work / "texts"
    folder.mkdir(exist_ok=True)
    rows = 256
    temperatures = torch.tensor([0.0, 0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 1.0]).repeat(rows // 8)
    for part in range(max(1, round(scale * NUM_TEXTS / rows))):
        path = folder / f"{part:03}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        prompts = windows(ids, 1_000_000 + part, rows, NUM_PROMPT - 1)
        written = write_on(model, prompts, NUM_WRITTEN, temperatures, seed=SEED + part)
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in written.tolist()]
        path.write_text(json.dumps(texts))
        print(f"part {part}: {rows * NUM_WRITTEN / (time.perf_counter() - began):.0f} tokens/s", flush=True)


# ----------------------------------------------------------------------------------------------- draft


def draft_rows(work: Path, tokenizer: Tokenizer) -> Tensor:
    """Return the target's texts in the draft's ids, one a row, -1 behind its end: [num_texts, row_length + 1]."""
    texts = [text for path in sorted((work / "texts").glob("*.json")) for text in json.loads(path.read_text())]
    rows = torch.full((len(texts), NUM_PROMPT + NUM_WRITTEN + 1), -1)
    for row, text in zip(rows, texts, strict=True):
        ids = torch.tensor(tokenizer.encode(text.replace(TARGET_EOS, DRAFT_EOS)).ids[: rows.shape[1]])
        row[: len(ids)] = ids
    return rows


def draft_stage(work: Path, scale: float) -> None:
    """Train the draft on the library, then on the target's own texts with one row in eight from the library."""
    tokenizer = Tokenizer.from_file(str(work / "draft-tokenizer.json"))
    train, held_out = split_library()
    ids = encode_modules(tokenizer, DRAFT_EOS, train)
    held_out_ids = encode_modules(tokenizer, DRAFT_EOS, held_out)
    num_bytes = sum(len(module.text.encode()) for module in held_out)
    written = draft_rows(work, tokenizer)
    print(f"{(written >= 0).sum():,} draft tokens written by the target")

    first, second = (math.ceil(scale * steps) for steps in DRAFT_STEPS)

    def batch_at(step: int) -> Tensor:
        if step < first:
            return windows(ids, step, BATCH, WINDOW)
        at = (step - first) * (2 * BATCH - 4)
        order = torch.randperm(len(written), generator=torch.Generator().manual_seed(SEED + at // len(written)))
        picked = order[(at + torch.arange(2 * BATCH - 4)) % len(written)]
        return torch.cat([written[picked], windows(ids, step, 4, written.shape[1] - 1)])

    torch.manual_seed(SEED)
    model = LlamaForCausalLM(draft_config())
    rate_at = trapezoid(first + second, decay_share=0.5)
    fit(model, batch_at, rate_at, range(first + second), work / "draft.pt")
    print(f"draft: {bits_per_byte(model, held_out_ids, num_bytes):.3f} bits/byte")
    model.save_pretrained(work / "draft")


# --------------------------------------------------------------------------------------------- package


def heldout_prompts(tokenizer: Tokenizer, modules: list[Module]) -> Iterator[dict[str, str | int]]:
    """Cut prompts at line ends: three short ones from each module, and a long one from the largest."""
    longest = sorted(modules, key=lambda module: -len(module.lines))[:8]
    for module in modules:
        rng = random.Random(f"{SEED} {module.name}")
        lines = module.text.splitlines()
        sizes = [(20, 60), (60, 100), (100, 150)] + ([(300, 400)] if module in longest else [])
        for low, high in sizes:
            for _ in range(200):
                start = rng.randrange(len(lines))
                if not lines[start].lstrip().startswith(("def ", "class ", "for ", "if ", "import ", "from ", "try:")):
                    continue
                ends = range(start + 1, min(start + 80, len(lines)))
                texts = {end: "\n".join(lines[start:end]) for end in ends if lines[end - 1]}
                fits = [end for end, text in texts.items() if low <= len(tokenizer.encode(text).ids) <= high]
                if fits:
                    yield {"prompt": texts[rng.choice(fits)], "module": module.name, "line": module.lines[start]}
                    break


def package_stage(work: Path, out: Path) -> None:
    """Write both models in bfloat16, their tokenizers and the held-out prompts as package data."""
    train, held_out = split_library()
    for name, eos in (("target", TARGET_EOS), ("draft", DRAFT_EOS)):
        model = LlamaForCausalLM.from_pretrained(work / name, dtype=torch.bfloat16)
        model.generation_config.pad_token_id = model.config.eos_token_id
        model.save_pretrained(out / name)
        (out / name / "model.safetensors").chmod(0o644)
        tokenizer = Tokenizer.from_file(str(work / f"{name}-tokenizer.json"))
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=eos,
            pad_token=eos,  # batches need one; the models' own configuration has none
            model_max_length=8192,
            clean_up_tokenization_spaces=False,
        )
        wrapped.save_pretrained(out / name)
    prompts = list(heldout_prompts(Tokenizer.from_file(str(work / "target-tokenizer.json")), held_out))
    (out / "heldout.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    digest = hashlib.sha256("\0".join(module.text for module in train).encode()).hexdigest()
    print(f"{len(prompts)} prompts; training text sha256 {digest}")


# --------------------------------------------------------------------------------------------- measure


@torch.inference_mode()
def step_times(models: list[LlamaForCausalLM], rounds: int = 60, context: int = 128) -> list[float]:
    """Return each model's median time for one token behind `context` others, in ms, interleaved, batch 1."""
    caches = [model(torch.full((1, context), 40), use_cache=True).past_key_values for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for model, cache, own in zip(models, caches, times, strict=True):
            began = time.perf_counter()
            model(torch.full((1, 1), 41), past_key_values=cache, use_cache=True)
            own.append((time.perf_counter() - began) * 1e3)
    return [sorted(own)[rounds // 2] for own in times]


@torch.inference_mode()
def says(model: LlamaForCausalLM, tokenizer: Tokenizer, pieces: list[str], context: str, wanted: str) -> bool:
    """Tell whether the draft's greedy text behind `context` begins with `wanted`.

    The context's last draft token is predicted anew, among the tokens that begin with it: the context may end within
    a token of the draft. One token of 2 bytes or more that holds half a character counts as not said.
    """
    ids = tokenizer.encode(context).ids[-WINDOW:]
    pending = pieces[ids.pop()]
    said = ""
    while len(said) < len(wanted):
        scores = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        if pending:
            scores[[not piece.startswith(pending) for piece in pieces]] = -math.inf
        best = int(scores.argmax())
        said += pieces[best][len(pending) :]
        ids.append(best)
        pending = ""
    return said.startswith(wanted)


def speed_up(agreed: list[list[bool]], ratio: float, num_candidates: int) -> float:
    """Return the greedy speed that rounds of a fixed length would give, in target passes of `ratio` draft steps."""
    written = rounds = 0
    for row in agreed:
        at = 0
        while at < len(row):
            block = row[at : at + num_candidates]
            accepted = block.index(False) if False in block else len(block)
            at += accepted + 1
            rounds += 1
        written += at
    return written / (rounds * (1 + num_candidates / ratio))


def measure_stage(out: Path, num_prompts: int = 40, num_new: int = 64) -> None:
    """Print what the model card reports, measured on the packaged pair in float32."""
    _, held_out = split_library()
    num_bytes = sum(len(module.text.encode()) for module in held_out)
    models, tokenizers = [], []
    for name, eos in (("target", TARGET_EOS), ("draft", DRAFT_EOS)):
        models.append(LlamaForCausalLM.from_pretrained(out / name, dtype=torch.float32).eval())
        tokenizers.append(Tokenizer.from_file(str(out / name / "tokenizer.json")))
        ids = encode_modules(tokenizers[-1], eos, held_out)
        print(f"{name}: {bits_per_byte(models[-1], ids, num_bytes):.3f} bits/byte on held-out modules, "
              f"{num_bytes / len(ids):.2f} bytes/token, {models[-1].num_parameters():,} weights")  # fmt: skip
    (target, draft), (tokenizer, draft_tokenizer) = models, tokenizers
    target_ms, draft_ms = step_times(models)
    print(f"target pass {target_ms:.2f} ms, draft step {draft_ms:.2f} ms, ratio {target_ms / draft_ms:.1f}")

    pieces = [draft_tokenizer.id_to_token(index) or "" for index in range(DRAFT_VOCAB)]
    prompts = [json.loads(line)["prompt"] for line in (out / "heldout.jsonl").read_text().splitlines()]
    step = max(1, len(prompts) // num_prompts)
    for label, temperature in (("greedy", 0.0), ("temperature 1.0", 1.0)):
        agreed, samples = [], []
        for index, prompt in enumerate(prompts[::step]):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            new = write_on(target, ids, num_new, torch.tensor([temperature]), seed=index)[0, ids.shape[1] :].tolist()
            new = new[: new.index(0)] if 0 in new else new
            texts = [tokenizer.decode(new[:end]) for end in range(len(new) + 1)]
            samples.append(prompt + "<|>" + texts[-1])
            agreed.append([
                says(draft, draft_tokenizer, pieces, prompt + before, after[len(before) :])
                for before, after in itertools.pairwise(texts)
            ])  # fmt: skip
        flat = [hit for row in agreed for hit in row]
        speeds = {k: speed_up(agreed, target_ms / draft_ms, k) for k in (2, 3, 4, 6, 8, 12, 16)}
        best = max(speeds, key=lambda k: speeds[k])
        print(f"{label}: the draft's greedy text has {sum(flat) / len(flat):.3f} of {len(flat)} target tokens; "
              f"{best} candidates a round would give {speeds[best]:.2f}x")  # fmt: skip
        for sample in samples[3:8:4]:
            print(f"---- {label}\n{sample}")


def main() -> None:
    """Run the stages."""
    stages = ("tokenizers", "target", "text", "draft", "package", "measure")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("uag/demo"), help="where the package data goes")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints, outside the repository")
    parser.add_argument("--stage", choices=["all", *stages], default="all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of all training steps and texts")
    parser.add_argument("--threads", type=int, default=2, help="torch threads; another number rounds differently")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    for stage in stages if args.stage == "all" else [args.stage]:
        print(f"-- {stage}", flush=True)
        if stage == "tokenizers":
            tokenizers_stage(args.work)
        elif stage == "package":
            package_stage(args.work, args.out)
        elif stage == "measure":
            measure_stage(args.out)
        else:
            {"target": target_stage, "text": text_stage, "draft": draft_stage}[stage](args.work, args.scale)


if __name__ == "__main__":
    main()
