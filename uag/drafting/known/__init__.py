"""Known texts as sources of candidates: the prompt and the output, earlier calls, predictions, and functions."""
