"""SentencePiece's pieces as GGUF files hold them: their spelling, and the merges that their scores stand for."""

from collections.abc import Sequence

MARK = "▁"
"""Stands for a space in a piece."""


def merges_of(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges that a vocabulary with scores stands for, the first to be made first.

    Each piece can come of every pair of pieces that spell it; those of a higher score merge before others, and of one
    piece's pairs the one with the longer left part.

    >>> merges_of(["a", "b", "ab", "aab"], [0.0, 0.0, -1.0, -2.0])
    [('a', 'b'), ('a', 'ab')]
    """
    known = set(tokens)
    found = [
        (-score, -cut, place)
        for place, (token, score) in enumerate(zip(tokens, scores, strict=True))
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
    found.sort(key=lambda entry: (entry[0], entry[1], -(len(tokens[entry[2]]) + entry[1]), entry[2]))
    return [(tokens[place][:-minus], tokens[place][-minus:]) for _, minus, place in found]


def spelled(token: str) -> str:
    """Return a piece with marks for its spaces: Gemma's runs of spaces stand as they are in the file."""
    return MARK * len(token) if token and not token.strip(" ") else token
