"""GGUF files: metadata, tokenizers and models, all through llama.cpp."""

from uag.gguf.cells import MOST_SEQUENCES, NUM_BATCH, Cells
from uag.gguf.draft import GgufDraft
from uag.gguf.file import GgufFile, Weights, is_gguf_name, read_file
from uag.gguf.llama import LlamaError
from uag.gguf.opening import open_weights
from uag.gguf.tokenizer import GgufTokenizer, read_tokenizer

__all__ = [
    "MOST_SEQUENCES",
    "NUM_BATCH",
    "Cells",
    "GgufDraft",
    "GgufFile",
    "GgufTokenizer",
    "LlamaError",
    "Weights",
    "is_gguf_name",
    "open_weights",
    "read_file",
    "read_tokenizer",
]
