"""An MCP server over stdio, written out by hand so that it can misbehave; run as a program."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOLS = {
    "double": "Double a word.",
    "pid": "Say which process answers.",
    "hang": "Never answer.",
    "die": "End without an answer.",
    "leave": "Answer, then end.",
    "flood": "Answer at length.",
    "line": "Write a line without an end.",
    "junk": "Write what is no message, then answer.",
    "control": "Answer with a terminal's control characters.",
    "fail": "Answer with an error of the tool.",
    "refuse": "Answer with an error of the protocol.",
    "secret": "Say what of the environment is seen.",
    "picture": "Answer with a picture.",
    "echo": "Answer with the arguments as they came.",
}


def send(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **value}) + "\n")
    sys.stdout.flush()


def texts(text: str, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    word = arguments.get("word", "")
    if name == "hang":
        time.sleep(600)
    if name == "die":
        sys.stderr.write("out of \x1b[31mluck\n")
        sys.exit(3)
    if name == "line":
        while True:
            sys.stdout.write("x" * 1_000_000)
    if name == "junk":
        sys.stdout.write("\x1b[2Jno message\n" * 1000)
    if name == "refuse":
        return None
    return {
        "control": texts("\x1b[31mred\x1b[0m\x07 \u202eflip"),
        "flood": texts("x" * 3_000_000 if name == "flood" else ""),
        "fail": texts("no such word", failed=True),
        "pid": texts(str(os.getpid())),
        "secret": texts(json.dumps({key: os.environ.get(key) for key in ("LET_THROUGH", "KEPT_BACK")})),
        "picture": {"content": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]},
        "echo": texts(json.dumps(arguments)),
    }.get(name, texts(word * 2))


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        asked, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            continue
        if asked == "initialize":
            about = {"name": "words", "version": "1"}
            result: Any = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            send({"id": message["id"], "result": {**result, "serverInfo": about}})
        elif asked == "tools/list":
            names = sorted(TOOLS)
            first = 0 if not params.get("cursor") else 7  # two pages
            tools = [{"name": n, "description": TOOLS[n], "inputSchema": WORD} for n in names[first : first + 7]]
            send({"id": message["id"], "result": {"tools": tools, **({} if first else {"nextCursor": "more"})}})
        elif (result := call(params["name"], params.get("arguments") or {})) is None:
            send({"id": message["id"], "error": {"code": -32602, "message": "no such argument"}})
        else:
            send({"id": message["id"], "result": result})
            if params["name"] == "leave":
                sys.exit(0)


if __name__ == "__main__":
    main()
