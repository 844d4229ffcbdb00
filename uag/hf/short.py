"""A target's passes behind its prompt, by the short forward of `uag.hf.blocks` where that gives the same.

Around the products of a small model's pass stands more Python than products: 36 layers of width 128 take 13 ms on one
core, 5 of them in products and attention. What plain decoding pays in every pass, uag need not.

The short forward multiplies the same weights in float32, so logits differ in rounding alone, as those of a block differ
from those of single tokens. In half precision the order of a sum shows in the output: there the model's own forward
runs. It also runs wherever a call asks for more than logits, or somebody's own code could see or change a pass: hooks,
forwards that were replaced, classes from outside of transformers, caches and masks of other kinds.
"""

import functools
import sys
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from uag.hf import caches, layers, masks, models
from uag.hf.block_trial import blocks_of, has_global_hooks
from uag.hf.blocks import MOST_SHORT, Blocks
from uag.hf.growing import BufferedLayer

_CLASSES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Classes whose forwards compute what the short one does at every position. Others of this shape may do something else
far from the beginning, where no trial reaches (Ministral 3 scales its queries by their positions)."""

_MOST_OFF = 1e-4
"""Difference from the model's own logits in a trial, as a share of the largest: rounding stays below a tenth of it."""

_LARGE_LAYER = 64 << 20
"""Bytes of a layer's weights. Reading so many takes ten times as long as the Python around them, so that little is won
for the three passes that a trial takes."""

_OWN = ("transformers", "torch", "kernels")
"""Packages whose functions may run in a model's forward; `kernels` wraps some of transformers' own."""

_INPUTS = {"input_ids", "attention_mask", "position_ids", "past_key_values", "logits_to_keep", "cache_position"}
_FLAGS = {"use_cache", "return_dict"}


class ShortForward:
    """Calls a model, by its short forward where one serves.

    Args:
        model: the target, as a call finds it: make a new one for each call, since hooks come and go.
        is_on: whether short passes are wanted at all.
    """

    def __init__(self, model: Any, is_on: bool = True) -> None:
        self._model = model
        self._blocks = _blocks_for(model) if is_on else None
        self._window = 0 if self._blocks is None else caches.smallest_window(model)

    @property
    def is_short(self) -> bool:
        """Whether passes behind the prompt may be short."""
        return self._blocks is not None

    def __call__(self, **inputs: Any) -> Any:
        """Run one pass: keyword arguments and outputs are the model's own."""
        blocks = self._blocks
        found = None if blocks is None else self._short(blocks, inputs)
        return self._model(**inputs) if found is None else found

    def _short(self, blocks: Blocks, inputs: dict[str, Any]) -> Any:
        """Return the outputs of a short pass; None where only the model's own forward can serve."""
        if not _is_plain(inputs) or _is_watched():
            return None
        ids, mask, cache = inputs["input_ids"], inputs.get("attention_mask"), inputs["past_key_values"]
        num_rows, width = ids.shape
        length = caches.length(cache)
        size, num_kept = length + width, inputs.get("logits_to_keep") or width
        if not length or width > MOST_SHORT or size > self._window or not isinstance(num_kept, int):
            return None
        if mask is not None and mask.shape != (num_rows, size):
            return None
        positions = inputs.get("position_ids")
        if positions is None:
            positions = torch.arange(length, size, device=ids.device)[None].expand(num_rows, -1)
        if positions.shape != ids.shape or positions.dtype != torch.long or len(cache.layers) != len(blocks):
            return None
        first, last = map(int, positions.aminmax())
        if first < 0:
            return None
        visible = _visible(mask, width, size)
        added = None if visible is None else masks.additive(visible, torch.float32)
        logits = blocks(ids, positions, last, added, cache, num_kept)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)


def _blocks_for(model: Any) -> Blocks | None:
    if type(model).__name__ not in _CLASSES or models.is_compiled(model):
        return None
    if model.dtype != torch.float32 or model.device.type != "cpu":
        return None
    if models.attention_of(model) not in masks.TAKING_MASKS:
        return None
    if not all(map(_is_own, {*map(type, layers.modules(model))})) or not _has_own_functions(model):
        return None
    if sum(weight.nbytes for weight in model.model.layers[0].parameters()) > _LARGE_LAYER:
        return None
    blocks = blocks_of(model)
    return None if blocks is None or blocks.off > _MOST_OFF else blocks


def _is_own(kind: type) -> bool:
    """Whether a class and its forward are those of transformers or torch; linear layers are called as they are.

    Whoever puts another forward into a class of transformers may do something that no trial shows.
    """
    if issubclass(kind, nn.Linear):
        return True
    return kind.__module__.partition(".")[0] in _OWN and _is_own_function(getattr(kind, "forward", None))


def _has_own_functions(model: Any) -> bool:
    """Whether attention, rotations and masks are transformers': forwards call them by name."""
    attention = ALL_ATTENTION_FUNCTIONS.get(models.attention_of(model))
    return all(map(_is_own_function, (attention, *vars(sys.modules[type(model).__module__]).values())))


def _is_own_function(found: Any) -> bool:
    """Whether something is no function, or none of somebody's; wrappers bear the name of what they wrap."""
    while isinstance(found, functools.partial):
        found = found.func
    if not callable(found) or isinstance(found, type):
        return True
    known = getattr(found, "__globals__", None)
    root = str(type(found).__module__ if known is None else known["__name__"]).partition(".")[0]
    return root in _OWN or root in sys.stdlib_module_names


def _is_plain(inputs: dict[str, Any]) -> bool:
    """Whether a pass is given nothing but ids, a mask over slots, positions and a cache that grows."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    return (
        isinstance(ids, torch.Tensor)
        and ids.dim() == 2
        and (mask is None or (isinstance(mask, torch.Tensor) and mask.dim() == 2))
        and type(inputs.get("past_key_values")) is DynamicCache
        and not getattr(inputs["past_key_values"], "offloading", False)
        and inputs.get("use_cache", True) is not False
        and caches.layer_types(inputs["past_key_values"]) <= {DynamicLayer, BufferedLayer}
        and not any(name not in _INPUTS | _FLAGS and _is_given(value) for name, value in inputs.items())
    )


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _is_watched() -> bool:
    """Whether this thread casts, differentiates, or has hooks on every module."""
    if torch.is_autocast_enabled("cpu") or torch.is_grad_enabled():
        return True
    return has_global_hooks()


def _visible(mask: torch.Tensor | None, width: int, size: int) -> torch.Tensor | None:
    """Return [num_rows or 1, 1, width, size]: what each token sees; None where that is everything."""
    seen = None if mask is None or bool(mask.all()) else mask[:, None, None, :].bool()
    if width == 1:
        return seen
    causal = torch.ones((width, size), dtype=torch.bool, device="cpu").tril_(size - width)[None, None]
    return causal if seen is None else causal & seen
