"""Small tokenizers of every family, built in memory, as Hugging Face tokenizers."""

import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from uag.adapters import Place, TokenizerAdapter

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Once upon a time there was a little girl who lived in a small house near the forest.",
    "She said: don't worry, it's only 12345 steps away! We'll go there tomorrow.",
    "def add(first, second):\n    return first + second\n\n\nfor i in range(100):\n\tprint(i)\n",
    "if x == 0:\r\n        y = x + 1  # a comment with    many spaces",
    "Ein kleiner Bär ging über die Straße; naïve cafés, smørrebrød, œuvre.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "日本語のテキストです。中文文本，标点符号。한국어 텍스트",
    "نص عربي قصير 😀 👍🏽 e\u0301",
] * 3

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The bundled demo pair's: spaces stay raw, and one is joined to the following text.
RAW_PATTERN = r"\n+| {2,}|\t+|[ ._]?\p{L}+| ?\d| ?[^\s\p{L}\d]+|\s"
SPECIALS = ["<unk>", "<s>", "</s>"]


def wrap(backend: Tokenizer, **roles: str) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def byte_level(
    pre_tokenizer: Any = None, normalizer: Any = None, vocab_size: int = 600, added: tuple[Any, ...] = ()
) -> Any:
    """GPT-2's kind: byte-level BPE, by default with GPT-2's pattern."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(list(added))
    return wrap(backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def byte_level_digits() -> Any:
    """StarCoder's kind: each digit alone, then GPT-2's pattern; runs of spaces as ordinary added tokens."""
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return byte_level(pre_tokenizers.Sequence(steps), added=("    ", "  ", "        "))


def byte_level_llama3() -> Any:
    """Llama 3's kind: its own pattern, NFC normalization (like Qwen), turn markers."""
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    names = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    markers = [AddedToken(name, special=True) for name in names]
    tokenizer = byte_level(pre_tokenizers.Sequence(steps), normalizers.NFC(), vocab_size=700)
    tokenizer.add_special_tokens({"eos_token": markers[2], "bos_token": AddedToken("<|begin_of_text|>", special=True)})
    tokenizer.add_tokens(markers, special_tokens=True)
    return tokenizer


def byte_level_whole() -> Any:
    """Byte-level BPE without any pattern: merges run across words."""
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


def llama(
    prepend_scheme: str | None = "first", byte_fallback: bool = True, crossing: bool = False, unk: str | None = "<unk>"
) -> Any:
    """Llama 2's kind: BPE over "▁" with byte fallback. With scheme None: Prepend and Replace normalizers (Phi-3)."""
    trained = Tokenizer(models.BPE())
    # crossing: pieces may reach from one word into the next
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=not crossing)
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, max_token_length=12)
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if byte_fallback:
        pieces = [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    vocabulary = {piece: token_id for token_id, piece in enumerate([*SPECIALS, *pieces])}
    merges = [(a, b) for a, b in model["merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback))
    if prepend_scheme is None:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram(byte_fallback: bool = True, normalizer: Any = None, split: bool = True) -> Any:
    """T5's kind: Unigram over words."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    if normalizer is not None:
        trained.normalizer = normalizer
    trained.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    )
    pieces = [(name, score) for name, score in json.loads(trained.to_str())["model"]["vocab"] if name not in SPECIALS]
    extra = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)] if byte_fallback else []
    vocabulary = [(piece, 0.0) for piece in SPECIALS] + extra + pieces
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=split)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    if normalizer is not None:
        backend.normalizer = normalizer
    return wrap(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def raw(pattern: str = RAW_PATTERN, name_score: float = -20.0) -> Any:
    """The bundled demo draft's kind: Unigram with raw spaces and line breaks in its pieces, and byte fallback."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = split
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    names = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [tuple(item) for item in json.loads(trained.to_str())["model"]["vocab"] if item[0] not in names]
    backend = Tokenizer(models.Unigram([*((n, name_score) for n in names), *pieces], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return wrap(backend, bos_token="<s>", eos_token="</s>")


def wordpiece() -> Any:
    """BERT's kind: lower-cased WordPiece."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=list(roles.values()), show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend, **roles)


def byt5() -> Any:
    return ByT5Tokenizer()


def end_of_word() -> Any:
    """GPT-1's kind: BPE whose pieces end in "</w>", without its own adapter."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend, unk_token="<unk>", eos_token="</s>")


class CharacterTokenizer(PreTrainedTokenizer):
    """A slow Python tokenizer: one id per character, and per common pair of letters."""

    def __init__(self, **roles: Any) -> None:
        characters = sorted(set("".join(CORPUS)))
        names = ["<unk>", "</s>", *characters, "th", "he", "in", " t"]
        self._ids = {name: token_id for token_id, name in enumerate(names)}
        self._names = names
        super().__init__(**roles)

    @property
    def vocab_size(self) -> int:
        return len(self._names)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids) | dict(self.added_tokens_encoder)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        pieces = []
        while text:
            size = 2 if text[:2] in self._ids else 1
            pieces.append(text[:size])
            text = text[size:]
        return pieces

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self._names[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


def slow_python() -> Any:
    return CharacterTokenizer(unk_token="<unk>", eos_token="</s>")


def sentencepiece_library(model_type: str = "bpe", byte_fallback: bool = True) -> Any:
    """Return a tokenizer that runs the sentencepiece library on a `tokenizer.model`, which is trained here."""
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines()]),
        model_writer=model,
        model_type=model_type,
        byte_fallback=byte_fallback,
        vocab_size=600 if byte_fallback else 260,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model.getvalue())
        return SentencePieceBackend(vocab_file=str(path), unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def mistral_common(name: str = "tekken_240911.json") -> Any:
    """Mistral's own backend with a file of mistral_common; ImportError if that is not installed."""
    import mistral_common
    from transformers import MistralCommonBackend

    return MistralCommonBackend(tokenizer_path=str(Path(mistral_common.__file__).parent / "data" / name))


def holds(adapter: TokenizerAdapter, data: bytes) -> bool:
    """Whether encoding and joining a continuation returns the same bytes."""
    return adapter.join(adapter.encode_continuation(data)) == data


def encode_start(adapter: TokenizerAdapter, data: bytes, place: Place = Place.START) -> list[int]:
    """Encode a text from its start, without BOS."""
    return adapter.encode_continuation(adapter.prefix(data, place) + data)


# Maps a name to the builder and the expected family of its adapter.
BUILDERS: dict[str, tuple[Callable[[], Any], str]] = {
    "byte_level": (byte_level, "byte_level"),
    "byte_level_digits": (byte_level_digits, "byte_level"),
    "byte_level_llama3": (byte_level_llama3, "byte_level"),
    "byte_level_whole": (byte_level_whole, "byte_level"),
    "llama": (llama, "sentencepiece"),
    "llama_prepend": (lambda: llama(None), "sentencepiece"),
    "llama_crossing": (lambda: llama(crossing=True), "sentencepiece"),
    "llama_no_bytes": (lambda: llama(byte_fallback=False), "sentencepiece"),
    "llama_drops": (lambda: llama(byte_fallback=False, unk=None), "sentencepiece"),
    "unigram": (unigram, "sentencepiece"),
    "unigram_unsplit": (lambda: unigram(split=False), "sentencepiece"),
    "unigram_lossy": (lambda: unigram(byte_fallback=False, normalizer=normalizers.NFKC()), "sentencepiece"),
    "unigram_raw": (raw, "sentencepiece"),
    "unigram_raw_words": (lambda: raw(pattern=r" ?\S+|\s", name_score=0.0), "sentencepiece"),
    "wordpiece": (wordpiece, "generic"),
    "byt5": (byt5, "byte"),
    "end_of_word": (end_of_word, "generic"),
    "slow_python": (slow_python, "generic"),
    "sentencepiece_library": (sentencepiece_library, "generic"),
    "sentencepiece_library_unigram": (lambda: sentencepiece_library("unigram"), "generic"),
    "sentencepiece_library_no_bytes": (lambda: sentencepiece_library("unigram", False), "generic"),
}


@cache
def small_tokenizer(name: str) -> Any:
    return BUILDERS[name][0]()
