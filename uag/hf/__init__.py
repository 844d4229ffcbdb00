"""Code that depends on transformers internals: private names, caches and the path through `generate`."""
