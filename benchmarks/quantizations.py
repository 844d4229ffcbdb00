"""Quantizations that transformers applies to weights as it loads them on a CPU, by name."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

QUANTIZATIONS = (
    "torchao-int8", "torchao-int4", "torchao-tinygemm", "torchao-dynamic",
    "bitsandbytes-nf4", "bitsandbytes-int8", "quanto-int8",
)  # fmt: skip


def load_quantized(folder: str, quantization: str, dtype: str) -> Any:
    """Load a causal LM on the CPU, ready to generate; the package of the quantization must be installed."""
    config = _config(*quantization.split("-"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu", quantization_config=config)
    return model.eval()


def _config(package: str, kind: str) -> Any:
    if package == "bitsandbytes":
        return BitsAndBytesConfig(load_in_8bit=kind == "int8", load_in_4bit=kind == "nf4", bnb_4bit_quant_type="nf4")
    if package == "quanto":
        return QuantoConfig(weights=kind)
    from torchao import quantization

    if kind == "tinygemm":
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return TorchAoConfig(PrototypeInt4WeightOnlyConfig(group_size=32))
    if kind == "int4":
        group = quantization.PerGroup(32)
        return TorchAoConfig(quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group))
    kinds = {"int8": "Int8WeightOnlyConfig", "dynamic": "Int8DynamicActivationInt8WeightConfig"}
    return TorchAoConfig(getattr(quantization, kinds[kind])())
