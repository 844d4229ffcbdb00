"""Predictions from a function, which may answer while the target already writes: the output is plain decoding's."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

import uag
from tests.support.calls import GREEDY, MODES, NEW, PROMPTS, ROWS, assistant_of, compare, left_padded, pair, seeded
from tests.support.trained import small
from uag.bench import heldout_prompts, spread
from uag.errors import OptionError, PairError
from uag.loading import encode


def outputs(given: dict[str, Any]) -> list[list[int]]:
    width = given["input_ids"].shape[1]
    ids: list[list[int]] = seeded(3, pair()[0].generate, **given)[:, width:].tolist()
    return ids


class Arriving(Future[Any]):
    """A future that is done after it was asked a number of times."""

    def __init__(self, value: Any, num_asked: int) -> None:
        super().__init__()
        self.value, self.num_left = value, num_asked

    def done(self) -> bool:
        self.num_left -= 1
        if self.num_left < 0 and not super().done():
            self.set_result(self.value)
        return super().done()


@ROWS
@MODES
@pytest.mark.parametrize("num_asked", [0, 1, 7, 1000])
def test_an_answer_is_followed_from_when_it_arrives(num_rows: int, options: dict[str, Any], num_asked: int) -> None:
    given = left_padded(PROMPTS[:num_rows]) | options
    known = outputs(given)
    function = Once(Arriving(known, num_asked))
    assistant = uag.Assistant(None, prediction=function, num_candidate_tokens=4)
    stats = compare(pair()[0], given, assistant)
    assert function.seen == [given["input_ids"].tolist()]
    accepted = stats.accepted_by_source.get("prediction", 0)
    assert accepted >= (NEW - 8) // 2 * num_rows if num_asked < 10 else not accepted


class Once:
    """Keeps a record of its calls, and returns a value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.seen: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor) -> Any:
        self.seen.append(input_ids.tolist())
        return self.value

    def __deepcopy__(self, memo: Any) -> "Once":
        return self


@pytest.mark.parametrize("late", [False, True])
def test_text_of_a_thread_is_followed(late: bool) -> None:
    inputs = encode(small(), [spread(heldout_prompts(), 3)[0].text])
    options: dict[str, Any] = {"max_new_tokens": 48, "do_sample": False}
    expected = small().target.generate(**inputs, **options)
    text = small().target_tokenizer.decode(expected[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    begun = threading.Event()

    def write(input_ids: torch.Tensor) -> Any:
        if not late:
            return text
        return pool.submit(lambda: (begun.wait(), text)[1])

    class Begins:
        def put(self, value: torch.Tensor) -> None:
            begun.set()

        def end(self) -> None:
            pass

    assistant = uag.Assistant(None, None, small().target_tokenizer, num_candidate_tokens=8)
    with ThreadPoolExecutor(1) as pool:
        ids = assistant.generate(small().target, **inputs, **options, prediction=write, streamer=Begins())
    assert ids.tolist() == expected.tolist()
    assert assistant.stats.strategy == "prediction"
    assert assistant.stats.accepted_by_source["prediction"] > (0 if late else 24)


def test_a_later_call_asks_again_and_a_draft_works_meanwhile() -> None:
    given = left_padded(PROMPTS[:1]) | GREEDY
    known, assistant = outputs(given), assistant_of()
    assistant.options.prediction = Once(None)
    for value in (None, Arriving(known, 3), Arriving(None, 3), known):
        assistant.options.prediction.value = value
        stats = compare(pair()[0], given, assistant)
        assert stats.candidates_by_source.get("draft model", 0) > 0 or value is known
    assert len(assistant.options.prediction.seen) == 4


def test_a_cancelled_answer_is_none_and_an_error_ends_the_call() -> None:
    given = left_padded(PROMPTS[:1]) | GREEDY
    cancelled, failed = Future[Any](), Future[Any]()
    cancelled.cancel()
    failed.set_exception(ArithmeticError("no hint"))
    assert compare(pair()[0], given, uag.Assistant(None, prediction=Once(cancelled))).num_candidate_tokens == 0
    assistant = uag.Assistant(None, prediction=Once(failed), num_candidate_tokens=4)
    with pytest.raises(ArithmeticError, match="no hint"):
        assistant.generate(pair()[0], **given)
    assistant.options.prediction = None
    compare(pair()[0], given, assistant)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (3.5, OptionError, "prediction=3.5"),
        ([1, 2, 10**6], OptionError, "prediction contains the id 1000000"),
        ("text", PairError, "requires the target's tokenizer"),
        ([[1], [2]], OptionError, "prediction has 2 entries"),
    ],
)
def test_a_wrong_answer_is_refused(late: bool, value: Any, error: type[Exception], message: str) -> None:
    assistant = uag.Assistant(None, prediction=Once(Arriving(value, 2) if late else value), num_candidate_tokens=4)
    with pytest.raises(error, match=message):
        assistant.generate(pair()[0], **left_padded(PROMPTS[:1]), **GREEDY)
