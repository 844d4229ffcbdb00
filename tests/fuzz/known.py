"""Cases that once differed, by name; they run first, so that the search finds new ones.

`tests/integration/targets/test_changed_targets.py` has the changes of a tiny target.
"""

from tests.fuzz.case import Case

KNOWN: dict[str, Case] = {
    "a class of its own generate gets a prediction": Case(
        target="SeamlessM4TForTextToText {'scale_embedding': False}", source="prediction ids", door="install"
    ),
    "hidden states whose rows are not first": Case(
        target="Gemma3nForCausalLM",
        rows=("Once upon a time", (3,), (3,)),
        options={"max_new_tokens": 12, "output_hidden_states": True, "return_dict_in_generate": True},
        settings={"num_candidate_tokens": 4},
        right=0.7,
    ),
    "a hook changes the first passes": Case(change="hook passes"),
    "a module of the caller drops by default": Case(change="training swapped"),
    "Linear.forward is patched": Case(target="wide", change="patched Linear.forward"),
    "a function mode changes F.linear": Case(target="wide", change="function mode"),
    "a dispatch mode changes products": Case(target="wide", change="dispatch mode"),
    "a static cache of the caller is not used": Case(
        options={"max_new_tokens": 12, "use_cache": False}, extras=("cache static",)
    ),
    "a cache of the caller evicts": Case(extras=("cache evicting",)),
    "a cache of the caller rounds": Case(extras=("cache rounding",)),
    "a cache's update is replaced": Case(extras=("cache replaced",)),
    "a processor turns rounding into other ids": Case(
        around=("autocast bfloat16",), rows=("8f\u00e0\U0005cb12",), extras=("looking",)
    ),
    "masks do not fit a window": Case(target="ErnieForCausalLM {'sliding_window': 4}", rows=("Once upon a time", (3,))),
    "biases of positions do not fit a window": Case(
        target="UMT5ForConditionalGeneration {'sliding_window': 4}", rows=((3,), (3, 3, 3, 3))
    ),
    "a prompt that overflows is read by PyTorch": Case(
        target="ApertusForCausalLM", change="embeddings inf", rows=("def add(first, ",), extras=("cache scaled",)
    ),
}
