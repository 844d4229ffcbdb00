"""Hypothesis strategies: texts, bytes, edits of a growing text."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MAX_EXAMPLES = int(os.environ.get("MAX_EXAMPLES", "12"))

SETTINGS = settings(
    max_examples=MAX_EXAMPLES,
    deadline=None,
    derandomize="MAX_EXAMPLES" not in os.environ,  # the default run is deterministic; longer runs explore more
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

FRAGMENTS = [
    *("Hello", " world", " the", "ing", "'s", "it's", "don't", " I'll", "def f(x):", " + =", "!!", "...", ",", ", "),
    *(" ", "  ", "    ", "         ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\x00", "\x07"),
    *("1", "12345", " 2024", "３", "½", "日本語", "。", "，中文", "한국어", " русский", "عربي", "שלום", "ภาษาไทย", "ำ"),
    *("é", "e\u0301", "\u0301", "ø", "smørrebrød", "ﬁ", "Å", "\u212b", "ß", "İ"),
    *("😀", " 😀", "👍🏽", "👩\u200d💻", "🇩🇪"),
    *("<|im_end|>", "<|endoftext|>", "</s>", "<s>", "<unk>", "<0x41>", "A", "▁", "▁▁", "Ġ", "##", "[UNK]", "\ufffd"),
    *("\u180e", "\u200b", "\ufeff", "\u200d", "\x1c", "\x85", "\ue000", "\U0010ffff", "<", "<|", "|>"),
]


def texts(max_fragments: int = 12) -> st.SearchStrategy[str]:
    """Texts of awkward fragments and arbitrary characters."""
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    return st.lists(st.one_of(st.sampled_from(FRAGMENTS), anything), max_size=max_fragments).map("".join)


def cut_bytes(max_fragments: int = 12) -> st.SearchStrategy[bytes]:
    """UTF-8 that may begin and end in the middle of a character."""

    def cut(drawn: tuple[str, int, int]) -> bytes:
        data = drawn[0].encode()
        return data[drawn[1] : max(len(data) - drawn[2], 0)]

    return st.tuples(texts(max_fragments), st.integers(0, 3), st.integers(0, 3)).map(cut)


def any_bytes() -> st.SearchStrategy[bytes]:
    """Arbitrary bytes, not necessarily UTF-8."""
    return st.one_of(
        cut_bytes(), st.binary(max_size=12), st.lists(st.one_of(cut_bytes(2), st.binary(max_size=3))).map(b"".join)
    )
