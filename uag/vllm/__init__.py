"""Drafts inside vLLM: its `custom_class` method creates and calls `uag.vllm.Proposer`."""

from uag.vllm.proposer import Proposer, Settings

__all__ = ["Proposer", "Settings"]
