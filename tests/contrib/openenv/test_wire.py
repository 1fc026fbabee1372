from __future__ import annotations

import json

import pytest

from levelhead.contrib.openenv.wire import Reply, WireError, answer, read_data, read_reply, refusal, request


def test_requests_are_openenvs() -> None:
    assert json.loads(request("reset", {"seed": 3})) == {"type": "reset", "data": {"seed": 3}}
    assert json.loads(request("state")) == {"type": "state"}


def test_an_observation_reads_as_it_was_written() -> None:
    raw = answer("observation", {"observation": {"text": "a"}, "reward": 1, "done": True})
    assert read_reply(raw) == Reply({"text": "a"}, 1.0, done=True)
    assert read_reply(answer("observation", {"observation": {}, "reward": None})) == Reply({}, None, done=False)


def test_a_refusal_keeps_code_and_message() -> None:
    with pytest.raises(WireError, match="no such page") as caught:
        read_reply(refusal("VALIDATION_ERROR", "no such page"))
    assert caught.value.code == "VALIDATION_ERROR"


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        "3",
        '{"type": "observation"}',
        '{"type": "state", "data": {}}',
        '{"type": "observation", "data": {"reward": 1}}',
        '{"type": "observation", "data": {"observation": [], "reward": 1}}',
        '{"type": "observation", "data": {"observation": {}, "reward": "1"}}',
        '{"type": "observation", "data": {"observation": {}, "reward": NaN}}',
        '{"type": "observation", "data": {"observation": {}, "reward": 1e999}}',
        '{"type": "observation", "data": {"observation": {}, "reward": 1e308}}',
        '{"type": "observation", "data": {"observation": {}, "reward": 1' + "0" * 400 + "}}",
        '{"type": "observation", "data": {"observation": {}, "reward": ' + "[" * 500 + "]" * 500 + "}}",
        '{"type": "observation", "data": {"observation": {}, "done": "false"}}',
        '{"type": "observation", "data": {"observation": {}, "reward": 1, "reward": 2}}',
        '{"type": ' + "[" * 500 + "]" * 500 + ', "data": {}}',
        "[" * 100_000,
        '{"data":' * 100_000,
        b"\xff",
    ],
)
def test_anything_else_is_a_protocol_error(raw: str | bytes) -> None:
    with pytest.raises(WireError) as caught:
        read_reply(raw)
    assert caught.value.code == "PROTOCOL"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_refusal_brings_no_control_characters() -> None:
    with pytest.raises(WireError, match=r"^go away$") as caught:
        read_reply(refusal("VALIDATION_ERROR", "\x1b[2J\x1b]0;owned\x07go\n away"))
    assert str(caught.value).isprintable()


def test_a_state_is_not_an_observation() -> None:
    assert read_data(answer("state", {"step_count": 2}), "state") == {"step_count": 2}
