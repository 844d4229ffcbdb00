"""Running a model without leaving a trace: in its modules, in its owner's hooks, in the random state."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from uag.hf.hooks import is_foreign
from uag.hf.wrapped import device_of

_MAX_COPIED = 1 << 20
"""Numbers of a buffer that are put back if a pass writes into it; larger ones are tables that nothing writes to."""


def kept_random_states(device: torch.device) -> AbstractContextManager[None]:
    """Put back, at the end, the random states of the CPU and, where it is another one, of a device."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Put back, at the end, what passes of this thread change: attributes, buffers, new modules, random states.

    Hooks of the user's own do not see these passes; nothing is compiled for them.
    """
    with ExitStack() as stack:
        stack.enter_context(kept_random_states(device_of(model)))
        if hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_quiet_hooks(model))
        modules = list(model.modules())
        saved = [(module, *_taken(module)) for module in modules]
        try:
            yield
        finally:
            for module, attributes, contents, tensors in saved:
                _put_back(module, attributes, contents, tensors)


def _taken(module: Any) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Any, Any]]]:
    """Return a module's attributes, copies of those that are plain containers, and copies of its small tensors."""
    attributes = dict(vars(module))
    contents = {name: value.copy() for name, value in attributes.items() if type(value) in (dict, list, set)}
    loose = [value for value in attributes.values() if isinstance(value, torch.Tensor)]
    tensors = [part for part in (*loose, *module.buffers(recurse=False)) if part.numel() <= _MAX_COPIED]
    return attributes, contents, [(tensor, tensor.clone()) for tensor in tensors if tensor.device.type != "meta"]


def _put_back(
    module: Any, attributes: dict[str, Any], contents: dict[str, Any], tensors: list[tuple[Any, Any]]
) -> None:
    known = vars(module)
    for name in [name for name in known if name not in attributes]:
        del known[name]
    for name, value in attributes.items():
        if known.get(name) is not value:
            known[name] = value
    for name, content in contents.items():
        container = attributes[name]
        if isinstance(container, list):
            container[:] = content
        else:
            container.clear()
            container.update(content)
    for tensor, copied in tensors:
        if not torch.equal(tensor, copied):
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(copied)


@contextmanager
def _quiet_hooks(model: Any) -> Iterator[None]:
    """Let the user's forward hooks pass over what this thread runs; they stay where they are."""
    thread = threading.get_ident()
    silenced = []
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                if is_foreign(hook):
                    hooks[key] = _except_in(thread, hook)
                    silenced.append((hooks, key, hook))
    try:
        yield
    finally:
        for hooks, key, hook in silenced:
            if key in hooks:
                hooks[key] = hook


def _except_in(thread: int, hook: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return None if threading.get_ident() == thread else hook(*args, **kwargs)

    return called
