"""How the demo pair in `uag/demo` was made: `python -m training.demo_pair --help`. Not part of the package."""
