"""Draft models as a source of candidates: passes in PyTorch or llama.cpp, and the search that requests them."""
