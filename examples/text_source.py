"""Two sources of text as drafts: a folder of documents, and a server that completes.

    python examples/text_source.py folder DOCUMENTS            # text that stands in these files, whatever they are
    python examples/text_source.py server URL [MODEL]          # e.g. http://127.0.0.1:8080/v1 of llama.cpp or vLLM

Each writes the same text as plain decoding, and says where its tokens came from. The server may run any model with any
tokenizer: text is all that goes back and forth. It drafts, so it should be small and near; it answers within the
time-out or is not waited for.
"""

import json
import sys
import urllib.request
from bisect import bisect_left
from functools import partial
from pathlib import Path

import uag
from uag.drafting import TextDrafter
from uag.loading import demo_folder, load_model, load_tokenizer

PROMPT = "def copytree(src, dst, symlinks=False, ignore=None):\n"
MATCH = 32
"""Characters compared at most: more tell similar places apart, and make the index larger."""


class FolderSource:
    """Continues a text as the documents of a folder do: an index over their words, each by the text before it.

    This one holds some megabytes; for more, a suffix array of a library (pydivsufsort, say) does the same.

    Args:
        folder: searched with all folders in it; files that are no UTF-8 are left out.
        num_characters: of an answer.
    """

    def __init__(self, folder: str | Path, num_characters: int = 400) -> None:
        self.num_characters = num_characters
        self.text = "\0".join(self._read(path) for path in sorted(Path(folder).rglob("*")) if path.is_file())
        words = (n for n in range(1, len(self.text)) if not (self.text[n].isalnum() and self.text[n - 1].isalnum()))
        self.places = sorted(words, key=self._before)

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return ""

    def _before(self, place: int) -> str:
        """Return the characters before a place, the last one first: places that end alike are neighbours then."""
        return self.text[max(place - MATCH, 0) : place][::-1]

    def __call__(self, text: str) -> str:
        """Return what follows the longest end of `text` that stands somewhere; "" where that is a few characters."""
        wanted = text[-MATCH:][::-1]
        index = bisect_left(self.places, wanted, key=self._before)
        near = self.places[max(index - 1, 0) : index + 1]
        best = max(near, key=lambda place: num_equal(self._before(place), wanted), default=None)
        if best is None or num_equal(self._before(best), wanted) < 6:
            return ""
        return self.text[best : best + self.num_characters].partition("\0")[0]


def num_equal(first: str, second: str) -> int:
    """Return how many characters two texts begin with alike."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


class ServerSource:
    """Continues a text with a server that speaks OpenAI's completions: llama.cpp's, vLLM's, and others.

    Args:
        url: up to and with /v1.
        model: its name there; llama.cpp takes any.
        num_tokens: of an answer, in the server's tokens.
        timeout_s: seconds without a byte until an answer is given up; the target then writes without it for a while.
    """

    def __init__(self, url: str, model: str = "draft", num_tokens: int = 32, timeout_s: float = 0.5) -> None:
        self.url = url.rstrip("/") + "/completions"
        self.model, self.num_tokens, self.timeout_s = model, num_tokens, timeout_s
        self.num_failures = 0

    def __call__(self, text: str) -> str:
        """Return the server's greedy completion, "" where there is none in time."""
        asked = {"model": self.model, "prompt": text, "max_tokens": self.num_tokens, "temperature": 0}
        request = urllib.request.Request(
            self.url, json.dumps(asked).encode(), {"Content-Type": "application/json", "Authorization": "Bearer none"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                return str(json.load(response)["choices"][0]["text"])
        except (OSError, ValueError, LookupError, TypeError):  # no server, a time-out, an error page, another protocol
            self.num_failures += 1
            return ""


def main() -> None:
    """Write one text plainly and with a source, and show that they are the same."""
    kinds = {"folder": FolderSource, "server": ServerSource}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        raise SystemExit(__doc__)
    source = kinds[sys.argv[1]](*sys.argv[2:])
    target, tokenizer = load_model(demo_folder("target")), load_tokenizer(demo_folder("target"))
    inputs, options = tokenizer(PROMPT, return_tensors="pt"), {"max_new_tokens": 64, "do_sample": False}
    plain = target.generate(**inputs, **options)

    assistant = uag.Assistant(None, None, tokenizer, drafter=TextDrafter(source))
    generate = partial(assistant.generate, target)
    output = generate(**inputs, **options)
    print(tokenizer.decode(output[0]))
    print(assistant.stats.summary())
    print("equal to plain decoding:", output.tolist() == plain.tolist())


if __name__ == "__main__":
    main()
