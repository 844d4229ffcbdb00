"""Matrix products over few rows, in the form that this machine does fastest; see docs/products.md."""

from uag.products.choosing import Choice, choices, clock
from uag.products.placing import FastProducts, is_on, switched

__all__ = ["Choice", "FastProducts", "choices", "clock", "is_on", "switched"]
