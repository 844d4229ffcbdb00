"""How texts are cut before byte-level BPE, by the name that a GGUF file has for it (`tokenizer.ggml.pre`).

The patterns are those of the models' own tokenizer files. Where a file names none that is known here, GPT-2's is used,
as transformers does: a wrong cut costs acceptance on some texts, never output.
"""

from typing import Any

from tokenizers import Regex, pre_tokenizers

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD, _MARKS = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS}|{_SPACES}"
_GPT4O = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
)

_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_DIGITS = "digits"
"""Each digit alone, then GPT-2's pattern."""

_GPT2 = "gpt-2"

_KINDS: dict[Any, tuple[str, ...]] = {
    (_LLAMA3,): (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe",
        "chatglm-bpe", "glm4", "glm5",
    ),
    (_QWEN2,): ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"),
    (_QWEN35,): ("qwen35",),
    (_TEKKEN,): ("tekken",),
    (_GPT4O,): ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    _DEEPSEEK_CODER: ("deepseek-coder",),
    _DEEPSEEK3: ("deepseek-v3", "hunyuan-dense"),
    _DIGITS: ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    _GPT2: ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "modern-bert", "mellum", "default"),
}  # fmt: skip

_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names}

ADD_BOS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)
"""Files that name one of these and do not say whether a text starts with BOS: llama.cpp puts it there."""

WHOLE_WORDS = ADD_BOS | {"chatglm-bpe", "glm4", "glm5"}
"""Files that name one of these look up whole words before they merge."""


def is_known(name: str) -> bool:
    """Whether the way to cut is known by this name; an empty one stands for none."""
    return not name or name in _BY_NAME


def pre_tokenizer(name: str, add_prefix_space: bool = False) -> Any:
    """Make the steps that cut a text; see `is_known`."""
    kind = _BY_NAME.get(name, _GPT2)
    if kind == _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    if kind == _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)])
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind]
    last = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)
    return pre_tokenizers.Sequence([*steps, last])
