"""What a reply may hold, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from levelhead.recipe.sampling import Sampling
from levelhead.rollout.generators.vllm.routes import (
    COMPLETIONS,
    GENERATE,
    ReplyError,
    Stretch,
    read_reply,
    sampling_params,
    write_body,
)


def reply(**changes: Any) -> dict[str, Any]:
    rows = [{"token_id": 5, "logprob": -0.5}, {"token_id": 2, "logprob": -1.5}]
    spans = [{"version": "a-1", "start": 0, "end": 1}, {"version": "a-2", "start": 1, "end": 2}]
    choice = {"token_ids": [5, 2], "logprobs": {"content": rows}, "finish_reason": "stop", "weight_versions": spans}
    return {"choices": [{**choice, **changes}]}


def test_tokens_log_probabilities_and_versions_are_read() -> None:
    told = read_reply(GENERATE, reply(), {2})
    assert (told.token_ids, told.logprobs, told.stopped) == ((5, 2), (-0.5, -1.5), True)
    assert told.stretches == (Stretch("a-1", 1), Stretch("a-2", 2))


def test_a_budget_that_ran_out_is_no_stop_whatever_the_server_calls_it() -> None:
    assert not read_reply(GENERATE, reply(), {9}).stopped


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token_ids": [5, 3]}, "other tokens"),
        ({"token_ids": [5], "logprobs": {"content": []}}, "1 tokens and 0"),
        ({"logprobs": None}, "no reply of"),
        ({"token_ids": [], "logprobs": {"content": []}}, "no token"),
        ({"logprobs": {"content": [{"token_id": 5, "logprob": 0.5}, {"token_id": 2, "logprob": 0}]}}, "above 0"),
    ],
)
def test_a_reply_that_does_not_add_up_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ReplyError, match=says):
        read_reply(GENERATE, reply(**changes), {2})


def test_a_reply_that_is_no_reply_is_refused() -> None:
    for body in (None, [], {}, {"choices": []}, {"choices": [1]}, "text"):
        with pytest.raises(ReplyError):
            read_reply(COMPLETIONS, body, {2})


def test_a_request_holds_ids_and_never_text() -> None:
    params = sampling_params(Sampling(top_k=3, max_new_tokens=7), {4, 2}, 11)
    assert (params["stop_token_ids"], params["seed"], params["ignore_eos"]) == ([2, 4], 11, True)
    assert write_body(GENERATE, "m", (1, 2), params)["token_ids"] == [1, 2]
    old = write_body(COMPLETIONS, "m", (1, 2), params)
    assert (old["prompt"], old["return_token_ids"]) == ([1, 2], True)
