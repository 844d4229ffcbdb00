"""Matrix products over few rows, in forms that are faster than `nn.Linear`'s; see docs/products.md."""

from uag.products.placing import FastProducts, switched

__all__ = ["FastProducts", "switched"]
