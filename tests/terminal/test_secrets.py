"""What an endpoint says leaves without the key, however it spells it."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import random
import string
import textwrap
from collections.abc import Callable
from urllib.parse import quote

import httpx2
import pytest

from levelhead.errors import InputError
from levelhead.recipe.endpoint import Endpoint
from levelhead.tasks.endpoint import ChatClient, EndpointError
from levelhead.tasks.metering import Usage
from levelhead.terminal.secrets import Secrets
from night import cases

KEY = "sk-proj-A1b2/C3d4+E5f6=G7_h8!i9"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "URL-encoded": lambda key: quote(key, safe=""),
    "URL-encoded twice": lambda key: quote(quote(key, safe=""), safe=""),
    "URL-encoded in small letters": lambda key: quote(key, safe="").lower(),
    "in JSON": json.dumps,
    "in JSON with slashes escaped": lambda key: json.dumps(key).replace("/", "\\/"),
    "in JSON by numbers": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "in HTML": lambda key: html.escape(key).replace("=", "&#61;"),
    "in HTML by numbers": lambda key: "".join(f"&#x{ord(c):x};" for c in key),
    "as a string of Python": lambda key: "".join(f"\\x{ord(c):02x}" for c in key),
    "in base64": lambda key: base64.b64encode(key.encode()).decode(),
    "in base64 after a user": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "in base64 for URLs": lambda key: base64.urlsafe_b64encode(f"Bearer {key} ".encode()).decode(),
    "in base64 over lines": lambda key: "\n".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 11)),
    "in digits": lambda key: key.encode().hex(),
    "in digits with blanks": lambda key: key.encode().hex(" ").upper(),
    "over lines": lambda key: "\n".join(textwrap.wrap(key, 7)),
    "over escaped lines": lambda key: "\\n".join(textwrap.wrap(key, 7)),
    "over lines of a header": lambda key: "\r\n\t".join(textwrap.wrap(key, 9)),
    "in capitals": str.upper,
}


def leaks(text: str, key: str = KEY) -> list[str]:
    """Parts of a key of six characters or more that stand in a text, in small letters."""
    return [key[i : i + 6] for i in range(len(key) - 5) if key[i : i + 6].casefold() in text.casefold()]


@pytest.mark.night
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_is_found_in_every_spelling(spelling: str) -> None:
    rng = random.Random(spelling)
    for _ in range(cases(2, 300)):
        key = "".join(rng.choices(string.ascii_letters + string.digits + "-_./+=~", k=rng.randrange(20, 120)))
        said = SPELLINGS[spelling](key)
        shown = Secrets(key).clean(f"before {said} after")
        assert "[key]" in shown
        assert shown.startswith("before ")
        assert shown.endswith(" after")
        assert len(shown) < 40 or said not in shown, shown
        assert leaks(shown, key) == []


def test_a_key_that_is_cut_off_at_the_end_is_found() -> None:
    for length in range(6, len(KEY)):
        assert leaks(Secrets(KEY).clean(f"no such key: {KEY[:length]}")) == []


def test_words_that_are_no_key_stay() -> None:
    text = "sk is a language; sk-proj is a prefix, and A1b2 a cell. " * 50
    assert Secrets(KEY).clean(text) == text
    assert Secrets().clean(text) == text
    assert Secrets("EMPTY").clean_reply("The set is EMPTY.") == "The set is EMPTY."
    assert Secrets("EMPTY").clean("your key EMPTY") == "your key [key]"


def said(monkeypatch: pytest.MonkeyPatch, response: httpx2.Response | Exception, url: str = "http://e.test/v1") -> str:
    """All that a person may read of one call to an endpoint that answers so."""
    monkeypatch.setenv("THE_KEY", KEY)
    section = Endpoint(base_url=url, model="m", api_key_env="THE_KEY", patience_s=0, backoff_s=0.001)
    usage = Usage()

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert "@" in url or request.headers["authorization"] == f"Bearer {KEY}"
        if isinstance(response, Exception):
            raise response
        return response

    async def ask() -> str:
        async with ChatClient(section, usage, None, httpx2.MockTransport(answer)) as client:
            return (await client.ask([{"role": "user", "content": "?"}], 0.0, "0")).text

    try:
        text = asyncio.run(ask())
    except EndpointError as error:
        text = f"{error} {error.fix} {error.__cause__}"
    return text + " ".join(usage.take_news())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_way_out_of_the_client_shows_the_key(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    echo = SPELLINGS[spelling](KEY)
    line = " ".join(echo.split())
    ways: list[httpx2.Response | Exception] = [
        httpx2.Response(302, headers={"location": f"http://f.test/{line}"}),
        httpx2.Response(200, headers={"content-type": f"text/{line}"}, content=b"x"),
        httpx2.Response(200, content=echo.encode()),
        httpx2.Response(200, json={"choices": [], "echo": echo}),
        httpx2.Response(200, json={"choices": [{"message": {"content": f"Your key is {echo}."}}]}),
        httpx2.Response(401, content=f"bad key {echo}".encode()),
        httpx2.Response(401, content=(" " * 4070 + echo).encode()),
        httpx2.Response(422, json={"detail": [{"loc": ["header"], "msg": f"unknown {echo}"}]}),
        httpx2.Response(503, json={"error": {"message": echo}}),
        httpx2.Response(200, headers={"content-encoding": line}, content=b"x"),
        httpx2.ReadError(f"lost {echo}"),
    ]
    for way in ways:
        assert leaks(said(monkeypatch, way)) == [], way


def test_what_stands_in_an_address_is_not_shown_either(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://me:hunter2hunter2@e.test/v1"
    shown = said(monkeypatch, httpx2.Response(403, content=b"no entry for me:hunter2hunter2"), address)
    assert "hunter2" not in shown
    section = Endpoint(base_url="http://me:hunter2hunter2@e.test:99999999/v1", model="m")
    with pytest.raises(InputError) as caught:
        ChatClient(section, Usage())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "reason"), [("   ", "nothing but blanks"), ("\t\n", "nothing but blanks"), ("", "is not set")]
)
def test_a_key_of_blanks_is_no_key(monkeypatch: pytest.MonkeyPatch, value: str, reason: str) -> None:
    monkeypatch.setenv("THE_KEY", value)
    with pytest.raises(InputError, match=f"THE_KEY.*{reason}"):
        ChatClient(Endpoint(base_url="http://e.test/v1", model="m", api_key_env="THE_KEY"), Usage())
