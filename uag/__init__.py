"""Cross-tokenizer assisted generation for transformers."""
