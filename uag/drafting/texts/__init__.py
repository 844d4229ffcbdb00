"""Known texts as a source of candidates: the caller's predictions, and functions that continue a text."""
