"""GGUF files: drafts, their tokenizers, and their models as transformers'."""

from uag.gguf.draft import GgufDraft, expanded, is_gguf_name
from uag.gguf.model import UnknownFileError, load_model

__all__ = ["GgufDraft", "UnknownFileError", "expanded", "is_gguf_name", "load_model"]
