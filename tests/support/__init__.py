"""What several tests share: models, tokenizers, drafts that are tables, an engine without a model."""
