"""The names of transformers and PyTorch that uag needs, in one place.

`check()` runs before `import uag` loads anything else, so that a renamed one is a `CompatibilityError` that names it.
It cannot see attributes that only instances have; tests look for these on each supported release.
"""

import re
import warnings
from collections.abc import Iterable
from functools import cache
from pkgutil import resolve_name

import torch
import transformers

from uag.errors import CompatibilityError

OLDEST, NEWEST = "5.16.1", "5.24"  # the tested releases

VERSION = transformers.__version__


def release(version: str = VERSION) -> tuple[int, ...]:
    """Return a version's major and minor numbers."""
    return tuple(int(part) for part in version.split(".")[:2])


def _table(text: str) -> dict[str, tuple[str, ...]]:
    """Return the names of each module, class or object: a word with a colon, and the names after it."""
    parts = [part.split() for part in re.split(r"\n(?=\S)", text.strip())]
    return {owner.rstrip(":"): tuple(names) for owner, *names in parts}


NAMES = _table("""
transformers: AutoConfig AutoModelForCausalLM AutoModelForSeq2SeqLM AutoTokenizer Cache CompileConfig DynamicCache
    EncoderDecoderCache GenerationMixin LogitsProcessor LogitsProcessorList StaticCache GenerationConfig
    PreTrainedConfig PreTrainedModel StoppingCriteriaList
transformers.GenerationMixin: generate prepare_inputs_for_generation _prefill _sample
    _update_model_kwargs_for_generation _assisted_decoding _get_candidate_generator _extract_generation_mode_kwargs
    _validate_generation_mode _optimize_model_for_decode _supports_default_dynamic_cache _valid_auto_compile_criteria
transformers.Cache: batch_select_indices crop get_seq_length
transformers.PreTrainedConfig: _attn_implementation _experts_implementation
transformers.PreTrainedModel: _can_compile_fullgraph _is_stateful get_compiled_call
transformers.activations: GELUActivation GELUTanh QuickGELUActivation SiLUActivation
transformers.cache_utils: DynamicIndexedLayer DynamicLayer DynamicSlidingWindowLayer LinearAttentionLayer
    LinearAttentionAndFullAttentionLayer LinearAttentionAndSlidingWindowAttentionLayer StaticLayer
    StaticSlidingWindowLayer
transformers.generation.candidate_generator: CandidateGenerator _prepare_attention_mask _prepare_position_ids
transformers.generation.configuration_utils: GenerationMode
transformers.generation.logits_process: EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty
    ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor LogitNormalization
    LogitsProcessorList MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor MinPLogitsWarper
    NoBadWordsLogitsProcessor NoRepeatNGramLogitsProcessor PrefixConstrainedLogitsProcessor
    RepetitionPenaltyLogitsProcessor SequenceBiasLogitsProcessor SuppressTokensAtBeginLogitsProcessor
    SuppressTokensLogitsProcessor TemperatureLogitsWarper TopHLogitsWarper TopKLogitsWarper TopPLogitsWarper
    TypicalLogitsWarper WatermarkLogitsProcessor
transformers.generation.stopping_criteria: EosTokenCriteria MaxLengthCriteria MaxTimeCriteria StopStringCriteria
    StoppingCriteriaList
transformers.generation.utils: ALL_CACHE_NAMES GenerateDecoderOnlyOutput GenerateEncoderDecoderOutput GenerationMode
transformers.integrations.moe: ALL_EXPERTS_FUNCTIONS _default_apply_gate batched_mm_experts_forward
    grouped_mm_experts_forward
transformers.integrations.sdpa_attention: create_position_bias_mask sdpa_attention_forward
transformers.masking_utils: ALL_MASK_ATTENTION_FUNCTIONS
transformers.modeling_outputs: CausalLMOutputWithPast
transformers.modeling_utils: ALL_ATTENTION_FUNCTIONS
transformers.pytorch_utils: Conv1D
torch: _foreach_add_ _foreach_sub_ _foreach_zero_
torch._C: DisableTorchFunction _get_function_stack_at _len_torch_function_stack
torch._dynamo: config mark_static
torch._dynamo.callback: callback_handler
torch._dynamo.callback.CompilationCallbackHandler: register_start_callback remove_start_callback
torch._dynamo.eval_frame: _set_stance _stance
torch.mps: _get_default_mps_generator
torch.nn.modules.module: _global_forward_hooks _global_forward_pre_hooks
torch.ops.aten.dropout.default: _schema
torch.overrides: TorchFunctionMode
torch.utils._python_dispatch: TorchDispatchMode _get_current_dispatch_mode_stack
torch.utils._pytree: tree_leaves tree_map_only
""")

SERVER = _table("""
transformers.cli.serve: Serve
transformers.cli.serving.model_manager.ModelManager: get_model_modality load_model_and_processor process_model_name
transformers.cli.serving.utils: BaseGenerateManager
transformers.cli.serving.utils.BaseGenerateManager: generate_non_streaming generate_streaming
transformers.cli.serving.utils.BaseHandler: get_processor_inputs_from_messages
transformers.cli.serving.utils.GenerationState: get_manager
transformers.generation.streamers: BaseStreamer
""")


def check(names: dict[str, tuple[str, ...]] = NAMES) -> None:
    """Raise a `CompatibilityError` if this release lacks a name; warn once if it is newer than the tested ones."""
    _check_once() if names is NAMES else _look_up(names)
    if release(VERSION) > release(NEWEST):
        _warn_once(VERSION)


def require(instance: object, *names: str) -> None:
    """Raise a `CompatibilityError` if an object lacks an attribute that its class does not show."""
    _refuse([f"{type(instance).__name__}.{name}" for name in names if not hasattr(instance, name)])


@cache
def _check_once() -> None:
    """Look up `NAMES`: once, since that imports modules, whose locks a forked child may inherit held."""
    _look_up(NAMES)


def _look_up(names: dict[str, tuple[str, ...]]) -> None:
    _refuse(dict.fromkeys(each for owner, of_owner in names.items() for each in _missing(owner, of_owner)))


def _missing(owner: str, names: tuple[str, ...]) -> list[str]:
    try:
        found = resolve_name(owner)
    except (ImportError, AttributeError):
        return [owner]
    return [f"{owner}.{name}" for name in names if not hasattr(found, name)]


def _refuse(missing: Iterable[str]) -> None:
    if listed := ", ".join(missing):
        raise CompatibilityError(
            f"transformers {VERSION} with PyTorch {torch.__version__} lacks {listed}, which uag needs. "
            f"uag supports {OLDEST} to {NEWEST}: pip install 'transformers>={OLDEST},<5.25'."
        )


@cache
def _warn_once(version: str) -> None:
    warnings.warn(
        f"uag: transformers {version} is newer than the releases that uag was tested with ({OLDEST} to {NEWEST}). "
        "It has every name that uag needs. Each target runs a trial before it is assisted.",
        stacklevel=4,
    )
