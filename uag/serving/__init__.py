"""`uag serve`: transformers' OpenAI-compatible server for a target and a draft."""

from uag.serving.server import Server

__all__ = ["Server"]
