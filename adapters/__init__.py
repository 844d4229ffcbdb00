"""One tokenizer family per file; every adapter speaks bytes.

Two vocabularies meet in bytes, never in vocabulary strings. `from_tokenizer` picks the adapter, `AlignmentWindow`
re-encodes a growing text from a boundary that cannot change, `map_controls` carries control tokens across.
"""

from uag.adapters.base import Place, TokenizerAdapter
from uag.adapters.control import ControlRoles, map_controls
from uag.adapters.detect import from_tokenizer
from uag.adapters.window import AlignmentWindow

__all__ = ["AlignmentWindow", "ControlRoles", "Place", "TokenizerAdapter", "from_tokenizer", "map_controls"]
