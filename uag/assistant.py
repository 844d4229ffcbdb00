"""The assistant: a draft model and the two tokenizers, which make a target generate faster."""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from uag import forks, generate_hook
from uag.decoding import Call, Ranks, run
from uag.drafting import (
    ASSUMED,
    CopyPairing,
    Drafter,
    Pairing,
    PromptLookup,
    Session,
    TextDrafter,
    adapter_of,
    as_memory,
    dtypes_of,
    mismatch_of,
    require_drafter,
)
from uag.errors import OptionError, UnsupportedError
from uag.hf import inspection, passes
from uag.hf.decoder import COPY
from uag.hf.required_names import check
from uag.kernels import switched
from uag.loading import open_draft
from uag.lookahead import Lookahead
from uag.options import Options, changed, is_whole
from uag.stats import Stats, Totals, remember

logger = logging.getLogger("uag")

_MAX_SESSIONS = 8  # sessions kept for calls that overlap; some drafts keep a cache in each

_lock = forks.lock()


class Assistant:
    """Makes a target generate faster with a draft whose tokenizer may differ; the output never changes.

    Args:
        draft: a small causal LM (or an encoder-decoder for encoder-decoder targets), its hub name or folder, or a GGUF
            file (see docs/integrations.md). None for plain decoding.
        draft_tokenizer: the draft's tokenizer; not needed if the draft shares the target's, is passed by name, or is a
            GGUF file, which contains its own.
        tokenizer: the target's tokenizer; not needed if the draft shares it.
        drafter: a custom source of candidates, instead of a draft (see `uag.drafting.Drafter`).
        options: the options, as a `uag.Options`; None for the defaults.
        changes: options by name, instead of those in `options`: `uag.Assistant(draft, draft_independent=True)`.

    Raises:
        UnsupportedError: the model cannot draft (no LM head, a state that cannot be copied).
        PairError: the models cannot work together, or a tokenizer is missing.
        OptionError: an option has the wrong type or value, or options contradict each other.
        LoadingError: the draft was passed by name and cannot be loaded.

    Example:
        assistant = uag.Assistant(draft, draft_tokenizer, tokenizer)
        ids = assistant.generate(model, **inputs, max_new_tokens=200)
        ids = model.generate(**inputs, custom_generate=assistant, max_new_tokens=200)
        print(assistant.stats)

    Overlapping calls, from several threads or inside callbacks, share the draft and a memory, and learn separately. A
    custom `drafter` handles one call at a time.
    """

    def __init__(
        self,
        draft: Any,
        draft_tokenizer: Any = None,
        tokenizer: Any = None,
        *,
        drafter: Drafter | None = None,
        options: Options | None = None,
        **changes: Any,
    ) -> None:
        self.options = options = changed(options, changes, "Assistant()")
        if draft is not None and drafter is not None:
            raise OptionError("Both a draft and a drafter were passed. Pass only one: a drafter replaces the draft.")
        if isinstance(draft, type):
            raise OptionError(
                f"The draft is a class: {draft.__name__}. Pass a model, such as from_pretrained() returns."
            )
        if isinstance(draft, Drafter):
            raise OptionError(
                f"The draft is a drafter: pass it as uag.Assistant(None, drafter={type(draft).__name__}())."
            )
        if drafter is not None:
            require_drafter(drafter)
        if options.compile_draft and draft is None:
            raise OptionError("compile_draft=True requires a draft model. Pass a draft, or remove the option.")
        self.draft, self.draft_tokenizer = open_draft(draft, draft_tokenizer)
        self.tokenizer = tokenizer
        self.draft_refusal = ""  # set by uag.install() for a draft that cannot draft
        self.memory = as_memory(options.memory)
        self.stats = Stats()
        self._custom_drafter = drafter
        self._prepare()

    def _prepare(self, learned: Any = None) -> None:
        check()
        generate_hook.check()
        self.totals = Totals()
        self._adapter = adapter_of(self.tokenizer)  # the pairing reuses it
        self._drafter = self._custom_drafter
        if isinstance(self._drafter, TextDrafter):
            self._drafter = self._drafter.serving(self._adapter)
        self._sessions = [self._new_session()]
        if learned is not None:
            self._sessions[0].lookahead, self._sessions[0].rates = learned

    def _new_session(self) -> Session:
        options = self.options
        source: Pairing | CopyPairing | Drafter | None = self._drafter
        if isinstance(self.draft, str) and self.draft == COPY:
            source = CopyPairing(options.draft_weights or "int4")
        elif self.draft is not None:
            tokenizers, weights = (self.tokenizer, self.draft_tokenizer), options.draft_weights or "int8"
            with switched(options.own_kernels):  # they run a GGUF file, or llama.cpp does
                source = Pairing(self.draft, *tokenizers, compile_draft=options.compile_draft, draft_weights=weights)
        return Session(source, options, self.memory)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Use the first session that no other call uses, or a new one, of which a few are kept."""
        call = object()

        def leave() -> None:
            for session in self._sessions:
                if session.call is call:
                    session.call = None

        with forks.ending(leave):
            with _lock:
                session = next((session for session in self._sessions if session.call is None), None)
                if session is not None:
                    session.call = call
            if session is None and self._custom_drafter is not None:
                raise UnsupportedError(
                    "This assistant is in the middle of another call (from another thread, or inside a callback), and "
                    "its drafter can serve only one. Create one uag.Assistant with its own drafter per thread."
                )
            if session is None:
                session = self._new_session()
                session.call = call
                with _lock:
                    if len(self._sessions) < _MAX_SESSIONS:
                        self._sessions.append(session)
            yield session

    @property
    def lookahead(self) -> Lookahead:
        """What calls that do not overlap have learned."""
        return self._sessions[0].lookahead

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copying and pickling: models, tokenizers, options and what calls have learned."""
        created = ("totals", "_adapter", "_drafter", "_sessions")
        state = {name: value for name, value in vars(self).items() if name not in created}
        with _lock:  # until it is copied, no call begins that would change it
            free = next((session for session in self._sessions if session.call is None), None)
            learned = None if free is None else copy.deepcopy((free.lookahead, free.rates))
        return state | {"learned": learned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        learned = state.pop("learned")
        vars(self).update(state)
        self._prepare(learned)

    @classmethod
    def from_prompt_lookup(cls, tokenizer: Any = None, **options: Any) -> Self:
        """Return an assistant without a draft model, whose candidates are n-grams of the prompt and the output.

        Args:
            tokenizer: the target's tokenizer; only needed for stop strings and byte counts.
            options: other arguments of `Assistant`.
        """
        return cls(None, None, tokenizer, drafter=PromptLookup(), **options)

    def generate(self, model: Any, inputs: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Generate with `model` as the target, and return what `model.generate` returns.

        Args:
            model: the target.
            inputs: see `model.generate`; its other arguments are passed by name.
            kwargs: see `model.generate`. `tokenizer` is not needed, and a draft other than this assistant's raises an
                error. `prediction` overrides the assistant's, and `num_assistant_tokens` fixes the number of candidates
                per round.

        Raises:
            UnsupportedError: the generation mode cannot be assisted (beam search).
            PairError: the draft cannot work with this target.
            OptionError: something else than a target, another draft, an empty prompt, or an invalid number of
                candidates was passed.
        """
        model = generate_hook.target_of(model)
        target = generate_hook.generating_part(model)
        own = {"assistant_model": self.draft, "assistant_tokenizer": self.draft_tokenizer, "custom_generate": self}
        generate_hook.drop_own(kwargs, own)
        tokenizer = kwargs.pop("tokenizer", None) or self.tokenizer
        synced_gpus, streamer = kwargs.pop("synced_gpus", None), kwargs.get("streamer")
        generate_hook.prepare(target, inputs, kwargs, tokenizer)
        # Positional, because some classes name their first parameter differently (Whisper).
        positional = () if inputs is None else (inputs,)
        # transformers does not pass these to a custom_generate callable.
        options = {"prediction": kwargs.pop("prediction", None), "tokenizer": tokenizer, "streamer": streamer}
        options |= {"num_assistant_tokens": generate_hook.take_length(kwargs), "synced_gpus": synced_gpus}

        # Has no parameter that transformers would take from `kwargs`, as it takes `stop_strings` for `__call__`.
        def decode(model: Any, input_ids: Any, inputs_tensor: Any = None, **prepared: Any) -> Any:
            return self(model, input_ids, inputs_tensor=inputs_tensor, **options, **prepared)

        return generate_hook.original_generate(type(model))(model, *positional, custom_generate=decode, **kwargs)

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        inputs_tensor: torch.Tensor | None = None,
        streamer: Any = None,
        synced_gpus: bool | None = None,
        prediction: Any = None,
        tokenizer: Any = None,
        num_assistant_tokens: int | None = None,
        stop_strings: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Run a call with `custom_generate=assistant`; called by transformers, which passes no tokenizer.

        Raises:
            UnsupportedError: the generation mode cannot be assisted, or a custom drafter is busy with another call.
            PairError: there are stop strings, and the target's tokenizer is unknown.
        """
        generate_hook.refuse_prepared(model, generation_config)
        known = tokenizer or self.tokenizer
        stopping_criteria = generate_hook.with_stop_strings(stopping_criteria, stop_strings, known)
        if num_assistant_tokens is not None and not is_whole(num_assistant_tokens, 0):
            raise OptionError(
                f"num_assistant_tokens={num_assistant_tokens!r} must be a whole number of 0 or more, or None."
            )
        streamer = generate_hook.streamer_of_call(model) if streamer is None else streamer
        stats = Stats()
        with self._session() as session, inspection.inspected_once(model), switched(self.options.own_kernels):
            try:
                call = Call(
                    *(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs),
                    source_ids=inputs_tensor if model.config.is_encoder_decoder else None,
                    streamer=streamer,
                    options=self.options,
                    ranks=Ranks.of(model),
                    is_synced=passes.is_synced(model) if synced_gpus is None else synced_gpus,
                )
                drafter, is_assumed = self._drafter_for(session, call, prediction, tokenizer, stats)
                lookahead = session.lookahead
                if num_assistant_tokens is not None:
                    lookahead = Lookahead(num_assistant_tokens, lookahead.min_confidence)
                return run(call, drafter, lookahead, stats, ASSUMED if is_assumed else "")
            finally:
                self.stats = stats
                self.totals.add(stats)
                remember(model, stats)
                logger.info(stats.summary())

    def _drafter_for(
        self, session: Session, call: Call, prediction: Any, tokenizer: Any, stats: Stats
    ) -> tuple[Drafter | None, bool]:
        """Return a call's drafter or None, and whether shared ids are only assumed; record fall-backs."""
        drafter, is_assumed = session.drafter_for(call.model)
        stats.dtypes = dtypes_of(call.model, self.draft)
        tokenizer = self.tokenizer if tokenizer is None else tokenizer
        prediction = self.options.prediction if prediction is None else prediction
        num_rows, processors = call.input_ids.shape[0], call.logits_processor
        drafter = session.with_free_sources(drafter, prediction, call.model, num_rows, tokenizer, processors)
        if self.draft_refusal:
            effect = " This call fell back to plain decoding" if drafter is None else ""
            stats.fall_back(self.draft_refusal + effect)
        of_draft = "" if session.pairing is None else session.pairing.mismatch
        for mismatch in (mismatch_of("target", call.model, self._adapter), of_draft):
            if mismatch and drafter is not None:
                stats.fall_back(mismatch)
        return drafter, is_assumed

    def check(self, target: Any) -> None:
        """Refuse a target that this assistant cannot assist with a `PairError`, without running it."""
        self._sessions[0].drafter_for(target)

    def __repr__(self) -> str:
        unpaired = "plain" if self.draft is None else "depends on the target"
        drafter = self._sessions[0].drafter
        strategy = unpaired if drafter is None else drafter.strategy
        draft = None if self.draft is None else self.draft.__class__.__name__
        return f"Assistant(draft={draft}, strategy={strategy!r})"
