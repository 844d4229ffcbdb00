"""GGUF files: metadata, tokenizers and models, as transformers' or through llama.cpp."""

from uag.gguf.cells import MOST_SEQUENCES, NUM_BATCH, Cells
from uag.gguf.draft import GgufDraft
from uag.gguf.file import is_gguf_name, read_file
from uag.gguf.llama import is_installed
from uag.gguf.model import UnknownFileError, load_model
from uag.gguf.tokenizer import read_tokenizer

__all__ = [
    "MOST_SEQUENCES", "NUM_BATCH", "Cells", "GgufDraft", "UnknownFileError", "is_gguf_name", "is_installed",
    "load_model", "read_file", "read_tokenizer",
]  # fmt: skip
