"""The choice of texts to train and measure on."""

import pytest

from tests.support.tokenizers import byte_level
from uag.bench import Prompt
from uag.distill.writing import Text, hold_out, to_write, written_elsewhere
from uag.errors import OptionError

TOKENIZER = byte_level()
PROMPTS = [Prompt("1", "one"), Prompt("2", "two three")]


def due(temperatures: tuple[float, ...], num_prompts: int = 2, seed: int = 0) -> list[Text]:
    prompts = [Prompt(str(number), "x" * (number % 50 + 1)) for number in range(num_prompts)]
    return to_write(TOKENIZER, prompts, temperatures, 99, seed=seed)


def test_every_prompt_is_written_once_at_each_temperature() -> None:
    texts = due((0.0, 0.7))
    expected = [(size, temperature) for size in (1, 2) for temperature in (0.0, 0.7)]
    assert sorted((len(TOKENIZER.decode(text.prompt_ids)), text.temperature) for text in texts) == sorted(expected)
    assert len({text.text_id for text in texts}) == len({text.seed for text in texts}) == len(texts)
    assert not {text.seed for text in texts} & {text.seed for text in due((0.0, 0.7), seed=1)}


@pytest.mark.parametrize(("num_prompts", "num"), [(2, 1), (100, 10), (1000, 32)])
def test_a_tenth_is_held_out(num_prompts: int, num: int) -> None:
    held = hold_out([Prompt(str(number), "x") for number in range(num_prompts)])
    assert len({prompt.prompt_id for prompt in held}) == num


def test_unusable_prompts_and_settings_are_refused() -> None:
    with pytest.raises(OptionError, match="at least two prompts are needed"):
        hold_out(PROMPTS[:1])
    with pytest.raises(OptionError, match=r"prompt 2 has \d+ tokens, it must have 1 to 1: shorten it"):
        to_write(TOKENIZER, [Prompt("1", "a"), PROMPTS[1]], (0.0,), 1)
    with pytest.raises(OptionError, match="prompt 1 has no 'text'"):
        written_elsewhere(TOKENIZER, PROMPTS, is_chat=False)


def test_texts_written_elsewhere_become_target_ids() -> None:
    (text,) = written_elsewhere(TOKENIZER, [Prompt("1", "one", output=" two")], is_chat=False)
    assert (TOKENIZER.decode(text.prompt_ids), TOKENIZER.decode(text.output_ids)) == ("one", " two")
    assert (text.temperature, text.seed) == (0.0, None)
