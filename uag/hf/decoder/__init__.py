"""What a decoder computes, as data that is read from a transformers model."""

from uag.hf.decoder.description import Attention, Block, Description, Linear, Mlp, Norm
from uag.hf.decoder.reader import UndescribedError, describe

__all__ = ["Attention", "Block", "Description", "Linear", "Mlp", "Norm", "UndescribedError", "describe"]
