"""Matrix products over few rows, in a form that is faster than `nn.Linear`'s own; see docs/products.md."""

from uag.products.placing import FastProducts, switched

__all__ = ["FastProducts", "switched"]
