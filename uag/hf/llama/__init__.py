"""A forward for Llama-style drafts with less overhead than transformers'."""
