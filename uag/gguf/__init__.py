"""GGUF files: metadata, tokenizers and models, all through llama.cpp."""

from uag.gguf.cells import MOST_SEQUENCES, NUM_BATCH, Cells
from uag.gguf.draft import GgufDraft
from uag.gguf.file import is_gguf_name, read_file
from uag.gguf.tokenizer import read_tokenizer

__all__ = ["MOST_SEQUENCES", "NUM_BATCH", "Cells", "GgufDraft", "is_gguf_name", "read_file", "read_tokenizer"]
