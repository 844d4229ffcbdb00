"""How the demo pair in `uag/demo` was made: `python -m benchmarks.demo_pair --help`. Not part of the package."""
