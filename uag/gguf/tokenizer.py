"""The tokenizer inside a GGUF file, run by llama.cpp, with the methods of a Hugging Face tokenizer that uag calls."""

import ctypes
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from uag.errors import TokenizerError
from uag.gguf.file import GgufFile, read_file
from uag.gguf.llama import call, library

_MAX_KEPT = 4
"""Number of tokenizers to cache. Increase to rebuild fewer tokenizers; decrease to save memory."""


class GgufTokenizer:
    """The tokenizer of an open GGUF file.

    Attributes:
        file: the file.
        pieces: the bytes of each id in the middle of a text; none for control tokens and ids that only pad the head.
        added_tokens_decoder: control tokens (`special`) and tokens that users defined, by id.
        all_special_ids: the ids of the control tokens.
        all_special_tokens: their names.
        bos_token_id: the id that begins a text, or None; likewise for `eos`, `pad` and `unk`.

    Raises:
        TokenizerError: the file has no tokenizer, or one that cannot encode every text.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        llama = self._llama = library()
        attributes = [llama.llama_vocab_get_attr(file.vocabulary, i) for i in range(file.vocab_size)]
        control = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN
        self.pieces = {i: piece for i in range(file.vocab_size) if (piece := self._piece(i))}
        self.added_tokens_decoder = {
            i: AddedToken(self._name(i), normalized=False, special=bool(attribute & control))
            for i, attribute in enumerate(attributes)
            if attribute & (control | llama.LLAMA_TOKEN_ATTR_USER_DEFINED)
        }
        self.all_special_ids = [i for i, token in self.added_tokens_decoder.items() if token.special]
        self.all_special_tokens = [self.added_tokens_decoder[i].content for i in self.all_special_ids]
        unknown = (i for i, attribute in enumerate(attributes) if attribute & llama.LLAMA_TOKEN_ATTR_UNKNOWN)
        self.unk_token_id = next(unknown, None)
        # For roles that the file does not set, llama.cpp has defaults, which may be ordinary text.
        roles = (llama.llama_vocab_bos, llama.llama_vocab_eos, llama.llama_vocab_pad)
        ids = [int(role(file.vocabulary)) for role in roles]
        self.bos_token_id, self.eos_token_id, self.pad_token_id = (
            i if i in self.all_special_ids else None for i in ids
        )
        self._check(llama.llama_vocab_type(file.vocabulary))

    def _check(self, kind: int) -> None:
        """Refuse vocabularies with which llama.cpp would abort the process instead of encoding a text."""
        problem = ""
        num_bytes = len({piece for piece in self.pieces.values() if len(piece) == 1})
        if kind == self._llama.LLAMA_VOCAB_TYPE_NONE or not self.pieces:
            problem = "has no tokenizer"
        elif kind == self._llama.LLAMA_VOCAB_TYPE_SPM and num_bytes < 256:
            problem = "has a tokenizer without tokens for all bytes"
        if problem:
            raise TokenizerError(
                f"The GGUF file {str(self.file.path)!r} {problem}. Pass the model's own: uag.Assistant(draft, "
                "draft_tokenizer, tokenizer)."
            )

    def __reduce__(self) -> Any:
        """Copy and pickle by the file's path."""
        return _reopen, (self.file.path,)

    def __len__(self) -> int:
        """Return the highest id of a token + 1; higher ids only pad the head."""
        return 1 + max([*self.pieces, *self.added_tokens_decoder])

    @cached_property
    def dummy_prefix(self) -> bytes:
        """The space that this tokenizer adds before a text, or nothing."""
        value = self.file.value("tokenizer.ggml.add_space_prefix")
        has_space = self.file.value("tokenizer.ggml.model") in ("llama", "t5") if value is None else value == "true"
        return b" " if has_space else b""

    def encode_bytes(self, data: bytes, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text without a dummy prefix; names of control tokens are plain text."""
        num = -len(data) - 8
        while num < 0:  # llama.cpp needs more room
            size = -num
            ids = (ctypes.c_int32 * size)()
            arguments = self.file.vocabulary, data, len(data), ids, size, add_special_tokens, False
            num, _ = call(self._llama.llama_tokenize, *arguments)  # which warns about texts that begin with BOS
        return ids[:num]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, by default with BOS and EOS as the tokenizer adds them."""
        prefix = b"" if text.startswith(" ") else self.dummy_prefix
        return self.encode_bytes(prefix + text.encode("utf-8", "replace"), add_special_tokens)

    def _name(self, token_id: int) -> str:
        return str(self._llama.llama_vocab_get_text(self.file.vocabulary, token_id).decode("utf-8", "replace"))

    def _piece(self, token_id: int) -> bytes:
        for size in (64, 1 << 16):
            buffer = ctypes.create_string_buffer(size)
            num = self._llama.llama_token_to_piece(self.file.vocabulary, token_id, buffer, size, 0, False)
            if num >= 0:
                break
        return buffer.raw[:num]


read_tokenizer = lru_cache(maxsize=_MAX_KEPT)(GgufTokenizer)
"""Returns the tokenizer of a file, the same object while it is cached; raises as `GgufTokenizer`."""


def _reopen(path: Path) -> GgufTokenizer:
    return read_tokenizer(read_file(path))
