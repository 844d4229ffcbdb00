"""Cases that once differed, by name; they run first, so that the search finds new ones."""

from __future__ import annotations

from tests.fuzz.case import Case

BATCH = ((5, 9, 14), (8, 6), (7,))
ATTENTIONS = {"max_new_tokens": 12, "output_attentions": True, "return_dict_in_generate": True}
LONG: dict[str, int | None] = {"num_candidate_tokens": 7}

KNOWN: dict[str, Case] = {
    "a global hook adds one vector per row": Case(change="global hook row", rows=BATCH, settings=LONG, seed=1),
    "a forward adds one vector per row": Case(change="forward row", rows=BATCH, settings=LONG, seed=1),
    "a forward depends on the width": Case(change="forward width"),
    "a forward looks at the last position": Case(change="forward last"),
    "a global hook depends on the width": Case(change="global hook width"),
    "a hook changes the last position": Case(change="hook last"),
    "a hook depends on the width": Case(change="hook width"),
    "a hook changes passes of one token": Case(change="hook single"),
    "a hook adds the mean over a pass": Case(change="hook mean"),
    "a hook changes the first passes": Case(change="hook passes"),
    "a module of the caller drops by default": Case(change="training swapped"),
    "F.embedding is patched": Case(change="patched F.embedding"),
    "torch.rsqrt is patched": Case(change="patched torch.rsqrt"),
    "Tensor.pow is patched": Case(change="patched Tensor.pow"),
    "DynamicCache.update is patched": Case(change="patched DynamicCache.update"),
    "DynamicLayer.update is patched": Case(change="patched DynamicLayer.update"),
    "Linear.forward is patched": Case(target="wide", change="patched Linear.forward"),
    "F.linear is patched": Case(target="wide", change="patched F.linear"),
    "a function mode changes F.linear": Case(target="wide", change="function mode"),
    "a dispatch mode changes products": Case(target="wide", change="dispatch mode"),
    "a cache of the caller evicts": Case(extras=("cache evicting",)),
    "a cache of the caller rounds": Case(extras=("cache rounding",)),
    "a cache's update is replaced": Case(extras=("cache replaced",)),
    "Falcon is asked for attentions": Case(target="falcon", options=ATTENTIONS),
    "GptOss is asked for attentions, given embeddings": Case("gpt_oss", options=ATTENTIONS, extras=("embeds",)),
}
