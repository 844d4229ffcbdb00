"""A forward of Llama-shaped drafts with less overhead than that of transformers."""
