"""Byte-level views of tokenizers, one file per tokenizer family: vocabularies are compared by the bytes of tokens."""

from uag.adapters.base import Place, TokenizerAdapter
from uag.adapters.control import ControlRoles, map_controls
from uag.adapters.detect import from_tokenizer
from uag.adapters.window import encode_after

__all__ = ["ControlRoles", "Place", "TokenizerAdapter", "encode_after", "from_tokenizer", "map_controls"]
