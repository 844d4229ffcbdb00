"""Experiments on a model: each runs once, leaves no trace, and its answer is remembered with the model."""
