"""What a decoder computes, as data that is read from a transformers model."""

from uag.hf.decoder.description import Attention, Block, Description, Linear, Mlp, Norm
from uag.hf.decoder.reader import UndescribedError, describe

COPY = "copy"
"""What is passed as a draft for a target that drafts for itself, with a small copy of its own weights."""

__all__ = ["COPY", "Attention", "Block", "Description", "Linear", "Mlp", "Norm", "UndescribedError", "describe"]
