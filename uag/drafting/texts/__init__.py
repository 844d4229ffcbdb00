"""Known texts as a source of candidates: predictions of the caller, and sources that continue a text."""
