"""Bodies of the calls that sample, and what their replies hold: token ids in, token ids and log-probabilities out.

Two routes do the same: ``/inference/v1/generate`` (with ``--enable-scale-out``) also says which weights drew which
token; an older server has ``/v1/completions`` with ``return_token_ids`` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead.diagnosis.notice import printable
from levelhead.recipe.sampling import Sampling

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
LEAST_LOGP = -1e4
"""What stands for the log-probability of a token that a server calls impossible, and drew."""
_ROUNDING = 1e-3
"""A log-probability may be above 0 by so much."""


class ReplyError(ValueError):
    """A reply does not hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens in a row that weights of one version drew.

    Attributes:
        label: By which the server calls the version.
        end: Index behind the last of them.
    """

    label: str
    end: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion as a server returned it.

    Attributes:
        token_ids: In order, the stop token included.
        logprobs: Of each, after every sampling control.
        stopped: Whether a stop token ended it; the budget did otherwise.
        aborted: Whether the server broke off.
        stretches: Versions of the weights, in order; empty where the server does not say.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    aborted: bool
    stretches: tuple[Stretch, ...]


def sampling_params(controls: Sampling, stop_ids: Collection[int], seed: int) -> dict[str, Any]:
    """Return a request's sampling controls in vLLM's words; the model's own end-of-text token counts for nothing."""
    return {
        "n": 1,
        "temperature": controls.temperature,
        "top_p": controls.top_p,
        "top_k": controls.top_k,
        "min_p": controls.min_p,
        "presence_penalty": controls.presence_penalty,
        "frequency_penalty": controls.frequency_penalty,
        "max_tokens": controls.max_new_tokens,
        "min_tokens": controls.min_new_tokens,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,
        "seed": seed,
        "logprobs": 0,
        "skip_special_tokens": False,
    }


def write_body(route: str, model: str, token_ids: Sequence[int], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a call."""
    if route == GENERATE:
        return {"model": model, "token_ids": list(token_ids), "sampling_params": {**params, "detokenize": False}}
    return {"model": model, "prompt": list(token_ids), "return_token_ids": True, **params}


def read_reply(
    route: str, body: Any, stop_ids: Collection[int], most: int | None = None, vocabulary: int | None = None
) -> Reply:
    """Return what a reply holds, checked against what was asked for.

    Args:
        route: Of the call.
        body: The reply's JSON.
        stop_ids: Tokens that end a completion: nothing may follow one.
        most: Tokens that were asked for at most.
        vocabulary: Number of tokens of the model.

    Raises:
        ReplyError: It is no reply of this route; tokens are no whole numbers, outside the vocabulary, too many or
            behind a stop token; or log-probabilities or versions do not match them.
    """
    try:
        (choice,) = body["choices"]
        ids = tuple(_token(token, vocabulary) for token in choice["token_ids"])
        if route == GENERATE:
            rows = choice["logprobs"]["content"]
            logprobs = tuple(_logp(row["logprob"]) for row in rows)
            named = tuple(_whole(row["token_id"]) for row in rows if row.get("token_id") is not None)
            if named and named != ids:
                raise ReplyError("its log-probabilities are those of other tokens than it drew")
        else:
            logprobs = tuple(map(_logp, choice["logprobs"]["token_logprobs"]))
        spans = [(span["version"], _whole(span["end"])) for span in choice.get("weight_versions") or ()]
        finish = choice.get("finish_reason")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ReplyError):
            raise
        raise ReplyError(f"it is no reply of {route} ({type(error).__name__}: {printable(error, 200)})") from error
    if len(ids) != len(logprobs):
        raise ReplyError(f"it has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    if most is not None and len(ids) > most:
        raise ReplyError(f"it has {len(ids)} tokens, and {most} were asked for")
    if not ids and finish != "abort":
        raise ReplyError("it has no token")
    ends = [i for i, token in enumerate(ids[:-1]) if token in stop_ids]
    if ends:
        raise ReplyError(f"it goes on behind a stop token, at {ends[0]} of {len(ids)} tokens")
    return Reply(ids, logprobs, bool(ids) and ids[-1] in stop_ids, finish == "abort", _stretches(spans, len(ids)))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ReplyError(f"{printable(value, 40)} stands where a whole number should")
    return value


def _token(value: Any, vocabulary: int | None) -> int:
    token = _whole(value)
    if token < 0 or (vocabulary is not None and token >= vocabulary):
        raise ReplyError(f"token {printable(token, 40)} is none of the {vocabulary} of the vocabulary")
    return token


def _logp(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _ROUNDING:
        raise ReplyError(f"{printable(value, 40)} is no log-probability: no number, or above 0")
    return min(0.0, max(LEAST_LOGP, value))


def _stretches(spans: Sequence[tuple[Any, int]], tokens: int) -> tuple[Stretch, ...]:
    """The versions of the weights: each goes on where the one before it ended, and the last ends with the tokens."""
    stretches: list[Stretch] = []
    for label, end in spans:
        if not isinstance(label, str | int) or not (stretches[-1].end if stretches else 0) < end <= tokens:
            raise ReplyError("its versions of the weights do not fit its tokens")
        stretches.append(Stretch(str(label), end))
    if stretches and stretches[-1].end != tokens:
        raise ReplyError("its versions of the weights do not fit its tokens")
    return tuple(stretches)
