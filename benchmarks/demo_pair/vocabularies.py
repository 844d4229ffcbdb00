"""Two tokenizers of different kinds, each exact on any text: ByteLevel BPE for the target, Unigram for the draft."""

import json
import logging
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from benchmarks.demo_pair.library import Module, split_library

logger = logging.getLogger(__name__)

# Both tokenizers cut here. A run of spaces (indentation) is a piece, a single space goes with what follows.
PIECES = r"\n+| {2,}|\t+|[ ._]?\p{L}+| ?\d| ?[^\s\p{L}\d]+|\s"
TARGET_VOCAB, DRAFT_VOCAB = 1536, 3072
TARGET_EOS, DRAFT_EOS = "<|endoftext|>", "<|eos|>"
NEVER = -1000.0  # score of Unigram pieces that text must not match, such as a literal "<0x41>"


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
        logger.info(
            f"{name} tokenizer: {tokenizer.get_vocab_size()} ids, {num_tokens:,} tokens for "
            f"{sum(map(len, texts)):,} characters"
        )


def wrapped(tokenizer: Tokenizer, eos: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer as transformers has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token=eos,  # batches need one; the models' own configuration has none
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


def encode_modules(tokenizer: Tokenizer, eos: str, modules: list[Module]) -> Tensor:
    """Return all modules as one row of ids, each between two EOS: [num_tokens], int64."""
    eos_id = tokenizer.token_to_id(eos)
    ids = [eos_id]
    for module in modules:
        ids += [*tokenizer.encode(module.text).ids, eos_id]
    return torch.tensor(ids)
