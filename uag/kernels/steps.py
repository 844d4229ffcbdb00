"""The structures that the compiled pass takes; see `_decoder.h`, whose names and order these are."""

import ctypes

import torch

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

EMBED, LINEAR, ROTATE, ATTEND, ADD = range(5)
STORE, ACTIVATE, GATE_FIRST, ACCUMULATE = range(4)
HIDDEN, ADDED, QKV, ATTENDED, GATED = range(5)

_P, _L, _F, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class CWeight(ctypes.Structure):
    """A weight, as it is or as codes."""

    _fields_ = [
        ("data", _P), ("scales", _P), ("bias", _P), ("num_out", _L), ("num_in", _L),
        ("type", ctypes.c_int), ("stride", _L),
    ]  # fmt: skip


class CNorm(ctypes.Structure):
    """A norm; `in_use` is 0 for none."""

    _fields_ = [("weight", _P), ("bias", _P), ("eps", _F), ("center", ctypes.c_int), ("in_use", ctypes.c_int)]


class CStep(ctypes.Structure):
    """A step of a pass."""

    _fields_ = [
        ("w", CWeight * 3), ("norm", CNorm), ("key_norm", CNorm), ("cos", _P), ("sin", _P), ("sinks", _P),
        ("factor", _F), ("softcap", _F), ("a", _F), ("b", _F), ("window", _L), ("layer", _L), ("shift", _L),
        ("kind", _I), ("source", _I), ("to", _I), ("num_weights", _I), ("then", _I), ("act", _I), ("is_head", _I),
        ("rotated", _I), ("whole", _I),
    ]  # fmt: skip


class CPast(ctypes.Structure):
    """Keys and values in the cache of another model, of one layer."""

    _fields_ = [("k", _P), ("v", _P), ("k_stride", _L * 3), ("v_stride", _L * 3), ("end", _L), ("type", _I), ("_", _I)]


class CPass(ctypes.Structure):
    """A pass: its tokens, cache, buffers and results."""

    _fields_ = [
        ("steps", _P), ("ids", _P), ("positions", _P), ("sequences", _P), ("wanted", _P), ("counts", _P), ("first", _P),
        ("base", _P), ("places", _P), ("past", _P), ("cache", _P), ("buffers", _P * 5), ("logits", _P),
        ("sizes", _L * 5),
        ("num_steps", _L), ("num_tokens", _L), ("num_wanted", _L), ("num_sequences", _L), ("heads", _L),
        ("kv_heads", _L), ("dim", _L), ("capacity", _L), ("cache_type", _I), ("level", _I), ("threads", _I), ("_", _I),
    ]  # fmt: skip


class CCoding(ctypes.Structure):
    """A weight and the place of its codes."""

    _fields_ = [
        ("weight", _P), ("to", _P), ("scales", _P), ("num_out", _L), ("num_in", _L), ("type", _I), ("coded_type", _I),
        ("level", _I), ("threads", _I),
    ]  # fmt: skip
