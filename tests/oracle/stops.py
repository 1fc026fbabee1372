"""Endings: a policy that writes the template's end-of-turn stops there, and what the special tokens are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from levelhead.text.evidence import count, read
from levelhead.text.stops import end_of_turn_ids
from oracle.context import PreflightContext
from oracle.result import Check, Status, judged

_AT = 3


def check_stops(context: PreflightContext) -> Iterator[Check]:
    """Make the policy end its turn and look whether the sampler ends the completion."""
    yield _complete(context)
    yield _special(context)


def _complete(context: PreflightContext) -> Check:
    """Each token with which the template closes a turn ends a completion, as its last token."""
    codec = context.codec
    ends = end_of_turn_ids(codec.tokenizer, codec.template)
    prompts = context.contexts[:2]
    wrong = None
    for token in ends:
        with _insisting(context, token):
            turns = [t[0] for t in context.generator.sample(prompts, 1, context.greedy(max_new_tokens=8), context.seed)]
        (shown,) = read(codec, [token])
        for turn in turns:
            if turn.finish != "stop" or len(turn.completion_ids) != _AT or turn.completion_ids[-1] != token:
                wrong = (
                    f"a policy that writes the template's end-of-turn {shown.text!r} as token {_AT} is not stopped "
                    f"there: the completion has {len(turn.completion_ids)} tokens and finishes by {turn.finish!r}"
                )
    evidence = {
        "end_of_turn": [t.text for t in read(codec, ends)],
        "stop_set": [{"token": s.text, "id": s.id, "from": list(s.sources)} for s in codec.stops],
    }
    right = f"every end-of-turn of the template stops a completion ({', '.join(t.text for t in read(codec, ends))})"
    if not ends:
        right = f"the template closes turns with no token of its own; completions end with {codec.stops[0].text}"
    fix = "put the template's end-of-turn into the stop set (generation_config.eos_token_id, or the tokenizer's eos)"
    return judged("stops/complete", wrong, right, evidence, fix)


@contextlib.contextmanager
def _insisting(context: PreflightContext, token: int) -> Iterator[None]:
    """Make the model write one token at the third place of every completion, and never before."""
    passes = 0

    def insist(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        nonlocal passes
        passes += 1
        logits = output.logits.clone()
        logits[..., sorted(context.codec.stop_ids | {token})] = -1e4
        if passes >= _AT:
            logits[..., token] = 1e4
        output.logits = logits
        return output

    handle = context.policy.base.register_forward_hook(insist, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _special(context: PreflightContext) -> Check:
    """Judge padding, end and first tokens, with counts of both sides."""
    codec = context.codec
    odd = sorted(codec.judgements)
    worse = {"bos-missing", "bos-doubled", "end-of-turn-is-text", "eos-is-not-end-of-turn"}
    if any(stop.id == codec.pad_id and "template" in stop.sources for stop in codec.stops):
        worse.add("pad-is-stop")
    warned = sorted(codec.judgements & worse)
    prompts = [count(codec, turn.context_ids) for turn in context.turns]
    answers = [count(codec, turn.completion_ids) for turn in context.turns]
    kinds = ("total", "special", "stop", "padding")
    evidence = {
        "pad": str(codec.tokenizer.convert_ids_to_tokens(codec.pad_id)),
        "stop": [stop.text for stop in codec.stops],
        "pad_is_stop": codec.pad_collides,
        "in_prompts": {kind: sum(getattr(c, kind) for c in prompts) for kind in kinds},
        "in_completions": {kind: sum(getattr(c, kind) for c in answers) for kind in kinds},
        "judgements": odd,
    }
    if not odd:
        return Check("stops/special-tokens", "pass", "padding, end and first tokens do not collide", evidence)
    status: Status = "warn" if warned else "pass"
    fix = "see docs/tokens.md" if warned else ""
    return Check("stops/special-tokens", status, ", ".join(warned or odd), evidence, fix)
