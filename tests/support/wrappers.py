"""Ways to wrap a model: adapters with nonzero weights, compilation, offloading, modules around modules."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model

from tests.support.calls import GREEDY, SAMPLED

CAUSAL = "CAUSAL_LM"
LAYERS = ["q_proj", "v_proj", "gate_proj"]


def adapted(model: Any, config: Any, scale: float = 0.05, names: tuple[str, ...] = ()) -> Any:
    """Return a copy of `model` with randomly initialized adapters, one for `config` and one for each of `names`."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        wrapped = peft.get_peft_model(copy.deepcopy(model), config)
        for name in names:
            wrapped.add_adapter(name, config)
    own = {name for name, _ in model.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            is_models = name.removeprefix("base_model.").removeprefix("model.").replace("base_layer.", "") in own
            if not is_models:
                parameter += scale * torch.randn(parameter.shape, generator=generator)
    return wrapped.eval()


def lora(model: Any, scale: float = 0.1, names: tuple[str, ...] = (), **options: Any) -> Any:
    return adapted(model, peft.LoraConfig(task_type=CAUSAL, r=4, target_modules=LAYERS, **options), scale, names)


def ia3(model: Any) -> Any:
    parts = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    return adapted(model, peft.IA3Config(task_type=CAUSAL, **parts))


def merged(model: Any, **options: Any) -> Any:
    wrapped = lora(model, **options)
    wrapped.merge_adapter()
    return wrapped


def compiled(model: Any) -> Any:
    return torch.compile(copy.deepcopy(model), backend="eager")


def compiled_forward(model: Any) -> Any:
    model = copy.deepcopy(model)
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_in_place(model: Any) -> Any:
    model = copy.deepcopy(model)
    model.compile(backend="eager")
    return model


def on_cpu(model: Any) -> Any:
    return cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))


def on_disk(model: Any, folder: Path) -> Any:
    return disk_offload(copy.deepcopy(model), str(folder), execution_device=torch.device("cpu"))


def spread_out(model: Any, folder: Path) -> Any:
    """Offload half of a Llama to the disk."""
    places = dict.fromkeys(("model.layers.1", "model.norm", "model.rotary_emb"), "cpu")
    places |= dict.fromkeys(("model.embed_tokens", "model.layers.0", "lm_head"), "disk")
    return dispatch_model(copy.deepcopy(model), places, main_device="cpu", offload_dir=str(folder), force_hooks=True)


def data_parallel(model: Any) -> Any:
    return torch.nn.DataParallel(copy.deepcopy(model))


class Around(torch.nn.Module):
    """A module that forwards all arguments, and whose signature has no named parameters."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inside(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inside"), name)


class ValueHead(torch.nn.Module):
    """A wrapper that generates with the model inside, and whose only other common attribute is the config."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.pretrained_model, self.config = inside, inside.config

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.pretrained_model.generate(*args, **kwargs)


Wrap = Callable[[Any], Any]

TRANSPARENT: dict[str, Wrap] = {
    "compiled": compiled,
    "forward compiled": compiled_forward,
    "compiled in place": compiled_in_place,
    "offloaded": on_cpu,
    "around": lambda model: Around(copy.deepcopy(model)),
    "value head": lambda model: ValueHead(copy.deepcopy(model)),
}
"""Wrappers that do not change a model's output."""

ADAPTERS: dict[str, Wrap] = {
    "lora": lora,
    "lora without a task": lambda model: adapted(model, peft.LoraConfig(r=4, target_modules=LAYERS)),
    "dora": lambda model: lora(model, use_dora=True),
    "lora merged": merged,
    "dora merged": lambda model: merged(model, use_dora=True),
    "ia3": ia3,
    "lora compiled": lambda model: compiled(lora(model)),
    "lora offloaded": lambda model: on_cpu(lora(model)),
}

VIRTUAL = {"prompt": peft.PromptTuningConfig, "prefix": peft.PrefixTuningConfig, "p-tuning": peft.PromptEncoderConfig}
"""Kinds of adapters that prepend virtual tokens to a prompt."""


def virtual(model: Any, kind: str) -> Any:
    return adapted(model, VIRTUAL[kind](task_type=CAUSAL, num_virtual_tokens=4), scale=0.3)


# What is run of each wrapper by default, and what with -m slow.
CALLS = [(3, GREEDY)]
OTHERS = [(1, SAMPLED), (1, GREEDY), (3, SAMPLED)]
_SLOW = {"compiled in place", "forward compiled", "lora without a task", "dora merged", "ia3", "lora offloaded"}
TRANSPARENT_NAMES, ADAPTER_NAMES = (
    [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name for name in kinds]
    for kinds in (TRANSPARENT, ADAPTERS)
)
BOTH = pytest.mark.parametrize("calls", [CALLS, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"])
