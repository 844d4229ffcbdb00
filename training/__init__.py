"""How the demo pair in `uag/demo` was made: `python -m training.demo_pair --help`. Not part of the package."""

import os

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # the Unigram trainer sums in thread order
