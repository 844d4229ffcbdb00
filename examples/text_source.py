"""Two sources of text as drafts: a folder of documents, and a completion server.

    python examples/text_source.py folder docs                 # text from the files of a folder
    python examples/text_source.py server URL [MODEL]          # e.g. http://127.0.0.1:8080/v1 of llama.cpp or vLLM

Each generates the same text as plain decoding, and prints where its tokens came from. The server may run any model with
any tokenizer, because only text is exchanged. Its model should be small and its latency low; an answer that arrives
after the time-out is ignored.
"""

import json
import sys
import urllib.request
from bisect import bisect_left
from functools import partial
from pathlib import Path

PROMPT = "def generate(model, **inputs):\n    return assistant.generate(model"
MATCH = 32
"""Maximum number of characters compared. Increase to distinguish similar passages; decrease for a smaller index."""


class FolderSource:
    """Continues a text as the documents of a folder do, with an index of their words sorted by the preceding text.

    The index suits a few megabytes; for more, use a suffix array from a library such as pydivsufsort.

    Args:
        folder: searched recursively; files that are not UTF-8 are skipped.
        num_characters: length of an answer.
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
        """Return the characters before a position in reverse, so that sorting groups equal preceding text."""
        return self.text[max(place - MATCH, 0) : place][::-1]

    def __call__(self, text: str) -> str:
        """Return what follows the longest suffix of `text` in the documents; "" if it is under six characters."""
        wanted = text[-MATCH:][::-1]
        index = bisect_left(self.places, wanted, key=self._before)
        near = self.places[max(index - 1, 0) : index + 1]
        best = max(near, key=lambda place: num_equal(self._before(place), wanted), default=None)
        if best is None or num_equal(self._before(best), wanted) < 6:
            return ""
        return self.text[best : best + self.num_characters].partition("\0")[0]


def num_equal(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


class ServerSource:
    """Continues a text with a server that has an OpenAI-compatible completions API: llama.cpp's, vLLM's, and others.

    Args:
        url: the server's URL, ending in /v1.
        model: the model's name on the server; llama.cpp accepts any.
        num_tokens: length of an answer, in the server's tokens.
        timeout_s: socket time-out in seconds; on a time-out the target continues without the source for a while.
    """

    def __init__(self, url: str, model: str = "draft", num_tokens: int = 32, timeout_s: float = 0.5) -> None:
        self.url = url.rstrip("/") + "/completions"
        self.model, self.num_tokens, self.timeout_s = model, num_tokens, timeout_s
        self.num_failures = 0

    def __call__(self, text: str) -> str:
        """Return the server's greedy completion, or "" if none arrives in time."""
        body = {"model": self.model, "prompt": text, "max_tokens": self.num_tokens, "temperature": 0}
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer none"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                return str(json.load(response)["choices"][0]["text"])
        except (OSError, ValueError, LookupError, TypeError):  # no server, a time-out, or not a completion
            self.num_failures += 1
            return ""


def main() -> None:
    """Generate one text with and without a source, and compare the outputs."""
    kinds = {"folder": FolderSource, "server": ServerSource}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        raise SystemExit(__doc__)
    if sys.argv[1] == "folder" and not Path(sys.argv[2]).is_dir():
        raise SystemExit(f"{sys.argv[2]!r} is not a folder")

    import uag
    from uag.drafting import TextDrafter
    from uag.loading import demo_folder, load_model, load_tokenizer

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
