"""The tokenizer that a GGUF file describes, as one that transformers and every adapter know.

The file holds the pieces, their kinds, and merges or scores; llama.cpp's own rules say what they mean. Made of these is
a tokenizer of the `tokenizers` library, with the same ids as transformers' `AutoTokenizer.from_pretrained(folder,
gguf_file=...)` gives; beyond that one, it knows BERT's kind, more ways to cut a text, and `add_space_prefix`.
"""

import logging
import re
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from uag.errors import TokenizerError
from uag.gguf import splits
from uag.gguf.file import GgufFile
from uag.gguf.pieces import MARK, merges_of, spelled

logger = logging.getLogger("uag")

_FILLING = re.compile(r"\[PAD\d+\]")
"""The names that converters give to ids without a token, up to the size of the model's head."""

_MOST_KEPT = 4
"""Tokenizers that are remembered: one of 260,000 tokens is some 200 MB."""

_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
}
"""A token's role as transformers calls it, and the key of its id; the misspelt one is the format's."""


class _Kind(IntEnum):
    """What a token is (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@lru_cache(maxsize=_MOST_KEPT)
def read_tokenizer(file: GgufFile) -> Any:
    """Make the tokenizer of a file: a `PreTrainedTokenizerFast`, the same one while it is remembered.

    Raises:
        TokenizerError: the file has no tokenizer, or one of a kind that is not known here.
    """
    return _Reader(file).tokenizer()


class _Reader:
    """Puts a tokenizer together from a file's metadata."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.kind = str(self._get("model", ""))
        if self.kind not in _BUILDERS:
            known = ", ".join(map(repr, _BUILDERS))
            raise TokenizerError(
                f"The GGUF file {str(file.path)!r} has "
                + (f"a tokenizer of kind {self.kind!r}, known are {known}" if self.kind else "no tokenizer")
                + ". Pass the model's own: uag.Assistant(draft, draft_tokenizer, tokenizer)."
            )
        self.tokens: list[str] = self._get("tokens", [])
        kinds = self._get("token_type")
        self.kinds: list[int] = [_Kind.NORMAL] * len(self.tokens) if kinds is None else kinds.tolist()
        if not self.tokens or len(self.kinds) != len(self.tokens):
            raise TokenizerError(
                f"The GGUF file {str(file.path)!r} has {len(self.tokens)} tokens, but names "
                f"the kinds of {len(self.kinds)}: it is damaged. Fetch it again."
            )
        self.ids = {role: self._get(key, self._default(role)) for role, key in _SPECIAL_IDS.items()}

    def _get(self, name: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"tokenizer.ggml.{name}", default)

    @cached_property
    def added(self) -> list[int]:
        """The ids of what is cut out of a text before all else: control tokens, and those that the user defined."""
        return [i for i, kind in enumerate(self.kinds) if kind in (_Kind.CONTROL, _Kind.USER_DEFINED)]

    @cached_property
    def behind(self) -> range:
        """The added ids that follow all others without a gap: they are no part of the model's own vocabulary.

        DeepSeek has an "ø" there that is text, while in its vocabulary the same letter stands for a byte.
        """
        others = set(range(len(self.kinds))) - set(self.added)
        first = 1 + max((i for i in others if self.kinds[i] != _Kind.UNUSED), default=-1)
        return range(first, next((i for i in range(first, len(self.kinds)) if i in others), len(self.kinds)))

    def _is_control(self, token_id: int) -> bool:
        return self.kinds[token_id] == _Kind.CONTROL

    def _content(self, token_id: int) -> str:
        """Return the name that an added token has in the vocabulary."""
        return spelled(self.tokens[token_id]) if self.kind == "llama" else self.tokens[token_id]

    def _default(self, role: str) -> int | None:
        """Return the id that a role has where the file does not say."""
        return _DEFAULT_IDS.get(self.kind, {}).get(role)

    def tokenizer(self) -> Any:
        """Build it, with its control tokens, its roles and its chat template."""
        backend: Tokenizer = _BUILDERS[self.kind](self)
        vocabulary = backend.get_vocab()
        # Each time takes a while. Those with an id come in any order, the others get theirs in turn.
        ids = sorted((i for i in self.added if self._content(i) in vocabulary), key=self._is_control) + list(
            self.behind
        )
        for is_special, some in groupby(ids, self._is_control):
            backend.add_tokens([AddedToken(self._content(i), normalized=False, special=is_special) for i in some])
        roles = {role: self.tokens[i] for role, i in self.ids.items() if i is not None and i < len(self.tokens)}
        backend.post_processor = self._template()
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=self.file.metadata.get("tokenizer.chat_template"),
            clean_up_tokenization_spaces=False,
            **roles,
        )

    def _template(self) -> Any:
        """Return what puts BOS and EOS around a text, where the file wants them."""
        starts = self._get("add_bos_token", self.kind in ("llama", "bert") or self._get("pre") in splits.ADD_BOS)
        ends = self._get("add_eos_token", self.kind == "t5")
        first = (
            self.ids["cls_token"]
            if self.kind == "bert" and self.ids["cls_token"] is not None
            else self.ids["bos_token"]
        )
        last = self.ids["eos_token"]
        if self.kind == "bert" and self._get("add_sep_token", True):
            ends, last = True, self.ids["sep_token"]
        before = [(self.tokens[first], first)] if starts and first is not None else []
        behind = [(self.tokens[last], last)] if ends and last is not None else []
        around = [name for name, _ in before], [name for name, _ in behind]
        return processors.TemplateProcessing(
            single=[*around[0], "$A", *around[1]],
            pair=[*around[0], "$A", *around[1], *around[0], "$B:1", *around[1]],
            special_tokens=list(dict.fromkeys(before + behind)),
        )

    # ------------------------------------------------------------------ kinds

    def byte_level(self) -> Tokenizer:
        """BPE over an alphabet of bytes."""
        name = str(self._get("pre", ""))
        if not splits.is_known(name):
            logger.warning(
                "uag: the GGUF file %r cuts texts in a way named %r, which is not known here; GPT-2's is used. Pass "
                "the model's own tokenizer where it matters.",
                str(self.file.path),
                name,
            )
        apart = {i for i, kind in enumerate(self.kinds) if kind == _Kind.UNUSED} | set(self.behind)
        vocabulary = {token: i for i, token in enumerate(self.tokens) if i not in apart}
        merges = [tuple(merge.split(" ")) for merge in self._get("merges", [])]
        backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in splits.WHOLE_WORDS))
        backend.pre_tokenizer = splits.pre_tokenizer(name, bool(self._get("add_space_prefix", False)))
        backend.decoder = decoders.ByteLevel()
        return backend

    def sentencepiece(self) -> Tokenizer:
        """BPE over text whose spaces are "▁", unknown characters in bytes."""
        tokens = [spelled(token) for token in self.tokens]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        given = self._get("merges")
        if given is not None:
            merges = [tuple(merge.split(" ")) for merge in given]
        elif self.file.architecture.startswith("gemma"):
            # Its scores do not say in which order pieces were merged; their places do.
            merges = merges_of(tokens, range(0, -len(tokens), -1))
        else:
            merges = merges_of(tokens, self._get("scores").tolist())
        unk = self.ids["unk_token"]
        has_bytes = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        backend = Tokenizer(
            models.BPE(
                vocabulary,
                merges,
                unk_token=None if unk is None else tokens[unk],
                fuse_unk=True,
                byte_fallback=has_bytes,
            )
        )
        has_prefix = bool(self._get("add_space_prefix", True)) and not self.file.architecture.startswith("gemma")
        if not has_prefix:
            backend.normalizer = normalizers.Replace(" ", MARK)
        elif self.file.architecture == "phi3":
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        else:
            backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if has_prefix else []))
        return backend

    def unigram(self) -> Tokenizer:
        """Unigram over words (T5)."""
        size = len(self.tokens)
        while size and self.kinds[size - 1] == _Kind.UNUSED and _FILLING.fullmatch(self.tokens[size - 1]):
            size -= 1
        pieces = list(zip(self.tokens[:size], self._get("scores").tolist(), strict=False))
        has_bytes = sum(kind == _Kind.BYTE for kind in self.kinds) == 256
        backend = Tokenizer(models.Unigram(pieces, unk_id=self.ids["unk_token"], byte_fallback=has_bytes))
        charsmap = self._get("precompiled_charsmap")
        if charsmap is not None and charsmap.size:
            backend.normalizer = normalizers.Precompiled(charsmap.tobytes())
        scheme = "always" if self._get("add_space_prefix", True) else "never"
        steps: list[Any] = [pre_tokenizers.Metaspace(prepend_scheme=scheme)]
        if self._get("remove_extra_whitespaces", False):
            steps.insert(0, pre_tokenizers.WhitespaceSplit())
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        return backend

    def wordpiece(self) -> Tokenizer:
        """WordPiece (BERT): the file marks the pieces that begin a word, the algorithm those that do not."""
        vocabulary: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            if token.startswith(MARK):
                spelled = token[len(MARK) :]
            else:
                spelled = token if token.startswith("[") and token.endswith("]") else f"##{token}"
            vocabulary.setdefault(spelled, i)
        unk = self.ids["unk_token"]
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]" if unk is None else self.tokens[unk]))
        lowers = bool(self._get("normalizer.lowercase", True))
        strips = self._get("normalizer.strip_accents", lowers)
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=bool(strips))
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        return backend


_BUILDERS = {
    "gpt2": _Reader.byte_level,
    "llama": _Reader.sentencepiece,
    "t5": _Reader.unigram,
    "bert": _Reader.wordpiece,
}

_DEFAULT_IDS = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "t5": {"eos_token": 1, "unk_token": 2, "pad_token": 0},
    "bert": {"cls_token": 101, "unk_token": 100, "sep_token": 102, "pad_token": 0},
}
