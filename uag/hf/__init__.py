"""TODO."""

from uag.hf.caches import (
    cache_names,
    check_cache,
    crop,
    dynamic_cache,
    encoder_decoder_cache,
    is_sliding,
    outlives_call,
    self_attention_layers,
    stop_recording,
    take_slots,
    windows,
)
from uag.hf.door import Door, EndingStreamer, mark_cache, option, original_generate, refuse_mode, refuse_modes
from uag.hf.growing import BufferedLayer, begin_buffering, end_buffering
from uag.hf.models import (
    block_refusal,
    candidates_refusal,
    default_cache_refusals,
    head_size,
    is_compiled,
    is_pipelined,
    is_training,
    max_positions,
    parallel_groups,
    unusual_layers,
)
from uag.hf.names import check, generation_mixin
from uag.hf.passes import extend_kwargs, is_synced, sample_plainly, streams_before_criteria
from uag.hf.processors import FOLLOWED, PER_ROW_STATE, POSITION_FREE, ROW_WISE
from uag.hf.slots import SlotCache

__all__ = [
    "BufferedLayer",
    "Door",
    "EndingStreamer",
    "FOLLOWED",
    "PER_ROW_STATE",
    "POSITION_FREE",
    "ROW_WISE",
    "SlotCache",
    "begin_buffering",
    "block_refusal",
    "cache_names",
    "candidates_refusal",
    "check",
    "check_cache",
    "crop",
    "sample_plainly",
    "default_cache_refusals",
    "dynamic_cache",
    "encoder_decoder_cache",
    "end_buffering",
    "extend_kwargs",
    "generation_mixin",
    "head_size",
    "is_compiled",
    "is_pipelined",
    "is_sliding",
    "is_synced",
    "is_training",
    "mark_cache",
    "max_positions",
    "option",
    "original_generate",
    "outlives_call",
    "parallel_groups",
    "refuse_mode",
    "refuse_modes",
    "self_attention_layers",
    "stop_recording",
    "streams_before_criteria",
    "take_slots",
    "unusual_layers",
    "windows",
]
