"""A chat endpoint in a process of its own that answers at once, always alike, and can be killed and started again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "parrot"


class Parrot(BaseHTTPRequestHandler):
    """Answers a conversation with a number that depends on the conversation alone."""

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.02)
        text = f"VERDICT: {'WRONG' if zlib.crc32(said) % 2 else 'RIGHT'}\n#### {zlib.crc32(said) % 9}"
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        body = json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        return


class ParrotServer:
    """The endpoint's process, on a port of its own."""

    model = MODEL

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, __file__, str(self.port)])
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
            except OSError:
                assert time.monotonic() < deadline, "the server did not come up"
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Parrot).serve_forever()
