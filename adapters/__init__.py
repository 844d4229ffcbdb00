"""Byte-level views of tokenizers, one file per tokenizer family.

Vocabularies are compared by the bytes of their tokens, never by vocabulary strings. `from_tokenizer` returns the
adapter of a tokenizer, `encode_after` encodes a text that follows ids, `map_controls` maps control tokens between
tokenizers.
"""

from uag.adapters.base import Place, TokenizerAdapter
from uag.adapters.control import ControlRoles, map_controls
from uag.adapters.detect import from_tokenizer
from uag.adapters.window import encode_after

__all__ = ["ControlRoles", "Place", "TokenizerAdapter", "encode_after", "from_tokenizer", "map_controls"]
