"""Drafts inside vLLM: `uag.vllm.Proposer` is what its `custom_class` method makes and asks."""

from uag.vllm.proposer import Proposer
from uag.vllm.settings import Settings

__all__ = ["Proposer", "Settings"]
