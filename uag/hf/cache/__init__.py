"""Caches: which kinds there are, how they grow in place, are cropped, and keep recurrent states."""
