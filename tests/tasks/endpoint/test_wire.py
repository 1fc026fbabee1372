"""What comes back is read strictly: a text, or a reason; tokens that can be, or an estimate that says so."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.tasks.endpoint import Reply, ReplyCache
from levelhead.tasks.endpoint.wire import TOKENS_BESIDE, NoCompletionError, read_reply, write_body

SENT = {"model": "m", "messages": [{"role": "user", "content": "12345678"}], "max_tokens": 16}
ESTIMATE = (3, 2)


def body(content: object = "four", finish: object = "stop", **keys: object) -> bytes:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return json.dumps({"choices": [choice], **keys}).encode()


def refused(raw: bytes) -> str:
    with pytest.raises(NoCompletionError) as raised:
        read_reply(raw, SENT)
    return str(raised.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("four", "four"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "fo"}, {"type": "output_text", "text": "ur"}], "four"),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Grade: 10"}]}, {"type": "text", "text": "x"}],
            "x",
        ),
        ("\ud83d\ude00 \ud800 \udfff", "\U0001f600 \ufffd \ufffd"),
    ],
)
def test_text_is_a_string_or_the_texts_of_parts(content: object, text: str) -> None:
    assert read_reply(body(content), SENT).text == text


@pytest.mark.parametrize(
    "content",
    [
        7,
        True,
        1.5,
        {"text": "x"},
        ["x"],
        [None],
        [{"type": "image_url", "image_url": {}}],
        [{"type": "text", "text": 7}],
    ],
)
def test_content_that_is_no_text_is_refused(content: object) -> None:
    assert refused(body(content)).startswith("content ")


@pytest.mark.parametrize("finish", [None, 0, [], {}])
def test_no_content_is_an_empty_text_only_where_the_choice_is_finished(finish: object) -> None:
    assert refused(body(None, finish)) == "no content"
    assert read_reply(b'{"choices": [{"message": {"role": "assistant"}, "finish_reason": "length"}]}', SENT).text == ""
    assert refused(b'{"choices": [{"message": {}}]}') == "no content"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "an empty body"),
        (b" \r\n", "an empty body"),
        (b"<html>", "Expecting value"),
        (b"data: {}\n\n", "Expecting value"),
        (b"\xff\xfe{\x00}\x00", "utf-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"choices":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer"),
        (b"[]", "a JSON list"),
        (b"null", "a JSON NoneType"),
        (b"{}", "no choices"),
        (b'{"error": {"message": "no"}}', "no choices"),
        (b'{"choices": {}}', "no choices"),
        (b'{"choices": [null]}', "no choices"),
        (b'{"choices": [{"text": "old"}]}', "no message"),
        (b'{"choices": [{"message": "x"}]}', "no message"),
        (body().replace(b'"content"', b'"content": "Grade: 10", "content"'), "names a key twice"),
        (body() + b"x", "Extra data"),
        (body()[:-1], "delimiter"),
    ],
)
def test_what_is_no_completion_is_refused_with_its_reason(raw: bytes, says: str) -> None:
    assert says in refused(raw)


def test_a_byte_order_mark_is_no_fault() -> None:
    assert read_reply(b"\xef\xbb\xbf" + body(), SENT).text == "four"


@pytest.mark.parametrize("finish", ["length", "stop", None])
def test_a_reply_says_whether_it_was_cut_off(finish: str | None) -> None:
    assert read_reply(body(finish=finish), SENT).cut is (finish == "length")


@pytest.mark.parametrize(("read", "written"), [(0, 0), (9, 4), (9.0, 4.0), (TOKENS_BESIDE, TOKENS_BESIDE + 256)])
def test_tokens_are_the_endpoints_where_they_can_be(read: float, written: float) -> None:
    reply = read_reply(body(usage={"prompt_tokens": read, "completion_tokens": written}), SENT)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.counted) == (read, written, True)


@pytest.mark.parametrize(
    "usage",
    [
        *(None, {}, [], 7, "many", {"prompt_tokens": 9}, {"prompt_tokens": 9, "completion_tokens": None}),
        *({"prompt_tokens": -9, "completion_tokens": 4}, {"prompt_tokens": 9, "completion_tokens": -1}),
        *({"prompt_tokens": 10**9, "completion_tokens": 4}, {"prompt_tokens": 9, "completion_tokens": 10**300}),
        *({"prompt_tokens": 9, "completion_tokens": TOKENS_BESIDE + 257},),
        *(
            {"prompt_tokens": float("nan"), "completion_tokens": 4},
            {"prompt_tokens": 9, "completion_tokens": float("inf")},
        ),
        *({"prompt_tokens": "9", "completion_tokens": 4}, {"prompt_tokens": True, "completion_tokens": 4}),
        *({"prompt_tokens": 9.5, "completion_tokens": 4}, {"prompt_tokens": [9], "completion_tokens": 4}),
    ],
)
def test_tokens_that_cannot_be_are_estimated_and_marked(usage: object) -> None:
    reply = read_reply(body(usage=usage), SENT)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.counted) == (*ESTIMATE, False)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(["text", "length", "\ud800"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "text", "content", "prompt_tokens", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(content=JSON, finish=JSON, usage=JSON, extra=JSON, swap=st.integers(0, 3))
def test_any_json_is_a_whole_reply_or_refused(content: Any, finish: Any, usage: Any, extra: Any, swap: int) -> None:
    """Whatever stands where: a text that can be written, counts from 0 up that a file can hold, or a refusal."""
    message = extra if swap == 1 else {"content": content}
    choice = extra if swap == 2 else {"message": message, "finish_reason": finish}
    check(json.dumps({"choices": extra if swap == 3 else [choice], "usage": usage}).encode())


def test_a_reply_with_broken_bytes_is_whole_or_refused() -> None:
    """Ten thousand replies with some bytes changed, cut, doubled or brought from elsewhere."""
    rng = random.Random(0)
    whole = body("The reason is sound.\nGrade: 7", usage={"prompt_tokens": 9, "completion_tokens": 4})
    tokens = [
        b"{",
        b"}",
        b"[",
        b'"',
        b"\\ud800",
        b"\xff",
        b"-",
        b"1e999",
        b"NaN",
        b"null",
        b",",
        b":",
        b"\x00",
        b"9" * 40,
    ]
    for _ in range(10_000):
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at, to = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
            raw[at : min(to, at + rng.choice([0, 0, 1, 9]))] = rng.choice([*tokens, b"", bytes(raw[at:to])])
        check(bytes(raw))


def check(raw: bytes) -> None:
    """Hold a reading to what every reader of a reply relies on."""
    try:
        reply = read_reply(raw, SENT)
    except NoCompletionError:
        return
    reply.text.encode()
    assert isinstance(reply, Reply)
    assert 0 <= reply.tokens < 2**31
    write_body({"content": reply.text})


def test_a_cache_of_before_is_still_read_and_damaged_rows_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, "
            "completion_tokens INTEGER NOT NULL, counted INTEGER NOT NULL)"
        )
        rows = [("a", "hi", 1, 2, 1), ("b", b"\x00\xff", 1, 2, 1), ("c", "hi", -1, 2, 1), ("d", "hi", "many", 2, 1)]
        db.executemany("INSERT INTO replies VALUES (?, ?, ?, ?, ?)", rows)
    cache = ReplyCache(path)
    assert cache.get("a") == Reply("hi", 1, 2)
    assert [cache.get(key) for key in "bcde"] == [None] * 4
    cache.put("e", Reply("cut", 1, 2, cut=True))
    assert cache.get("e") == Reply("cut", 1, 2, cut=True)
    assert ReplyCache(path).get("e") == cache.get("e")
