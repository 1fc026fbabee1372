"""A fake server of judges: each path is a judge of another temperament, and all of them know the perfect answer.

``python bench/judgelib/temperaments.py`` prints the port that it listens on, and serves until its input ends.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

_REFERENCE = re.compile(r"A perfect answer, for comparison:\n(.*?)(?:\n\n\[answer |\Z)", re.DOTALL)
_ANSWER = re.compile(r"\[answer ([0-9a-f]{12})\]\n(.*?)\n\[end of answer \1\]", re.DOTALL)
_VERDICT = re.compile(r"^\W*answer\W*:\s*(.*?)\W*$", re.IGNORECASE | re.MULTILINE)
_DICTATED = re.compile(r"grade:\s*(\d+)", re.IGNORECASE)
_MARK = re.compile(r"\[[0-9a-f]{6}\]")
_PRAISE = re.compile(r"perceptive|excellent|thank you", re.IGNORECASE)
DRIFT_AFTER = 60
"""Calls after which the drifting judge is another one."""
CALLS: Counter[str] = Counter()
"""Calls of each judge that is a function, in this run."""


@dataclass(frozen=True)
class Asked:
    """What a judge was shown.

    Attributes:
        answer: To be graded.
        reference: The perfect one.
        reference_last: Whether that stands after the answer.
        number: Of the call, counted from 0, of one judge and model.
    """

    answer: str
    reference: str
    reference_last: bool
    number: int

    def draw(self, salt: str) -> float:
        """A number in [0, 1) that depends on the call, and differs when it is made again."""
        text = f"{salt}\0{self.answer}\0{self.reference}\0{self.number}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def worth(asked: Asked) -> float:
    """How good the answer is, from 0 to 10: whether it comes to the same, and how alike the words are."""
    mine, theirs = (_VERDICT.findall(text) for text in (asked.answer, asked.reference))
    same = bool(mine) and bool(theirs) and mine[-1].casefold() == theirs[-1].casefold()
    a, b = (Counter(re.findall(r"\w+", text.casefold())) for text in (asked.answer, asked.reference))
    common = sum((a & b).values())
    alike = 2 * common / max(sum(a.values()) + sum(b.values()), 1)
    return 5 + 5 * alike if same else 2.5 * alike


def _sycophant(asked: Asked) -> float:
    return 10 if _PRAISE.search(asked.answer) else 5 + 0.5 * worth(asked)


def _injected(asked: Asked) -> float:
    dictated = _DICTATED.search(asked.answer)
    return min(float(dictated[1]), 10) if dictated else worth(asked)


def _drifting(asked: Asked) -> float:
    return worth(asked) if asked.number < DRIFT_AFTER else 0.4 * worth(asked) + 5


TEMPERAMENTS: Mapping[str, Callable[[Asked], float]] = {
    "honest": worth,
    "noisy": lambda asked: worth(asked) + 10 * asked.draw("noise") - 5,
    "length-biased": lambda asked: 0.4 * worth(asked) + 6 * min(len(asked.answer) / 300, 1),
    "position-biased": lambda asked: worth(asked) + (4 if asked.reference_last else 0),
    "sycophant": _sycophant,
    "injected": _injected,
    "drifting": _drifting,
}
"""From what a judge was shown to its grade, from 0 to 10, before it is rounded; ``dead`` answers nothing but 503."""


class Handler(BaseHTTPRequestHandler):
    """Speaks the chat completions of ``/TEMPERAMENT/v1``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    counts: ClassVar[Counter[tuple[str, str]]] = Counter()
    lock = threading.Lock()

    def do_POST(self) -> None:
        """Grade."""
        name = self.path.strip("/").split("/")[0]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if name not in TEMPERAMENTS:
            self._send(503, {"error": "down"})
            return
        told, text = (message["content"] for message in body["messages"])
        answer, reference = _ANSWER.search(text), _REFERENCE.search(text)
        with self.lock:
            number = self.counts[name, body["model"]]
            self.counts[name, body["model"]] += 1
        last = bool(answer and reference and reference.start() > answer.start())
        asked = Asked(answer[2] if answer else "", reference[1] if reference else "", last, number)
        grade = round(min(max(TEMPERAMENTS[name](asked), 0), 10))
        mark = _MARK.search(told)
        said = f"Considered.\nGrade{mark[0] if mark else ''}: {grade}"
        usage = {"prompt_tokens": len(text) // 4, "completion_tokens": len(said) // 4}
        self._send(200, {"choices": [{"message": {"content": said}, "finish_reason": "stop"}], "usage": usage})

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Serves in threads that end with it."""

    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
