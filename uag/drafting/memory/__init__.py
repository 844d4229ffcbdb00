"""Candidates from earlier calls: their prompts and outputs, in target ids."""
