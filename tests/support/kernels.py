"""A mark for tests that need uag's kernels, which a machine without a C compiler lacks."""

import pytest

from uag.kernels import kernel

needs_kernels = pytest.mark.skipif(not kernel.LEVEL, reason="no kernels were built")
