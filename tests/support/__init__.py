"""Shared test helpers: models, tokenizers, table-based drafts, an engine without a model."""
