"""Trials of a model: each runs once without side effects, and its result is cached per model."""
