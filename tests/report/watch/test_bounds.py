"""A run folder of unknown origin costs the live page little, and leads it nowhere else."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from levelhead.documents import require_regular
from levelhead.errors import InputError
from levelhead.report.watch.index import LONGEST_LINE, MOST_BYTES, MOST_ROWS
from levelhead.report.watch.rollouts import Filter, Rollouts
from levelhead.report.watch.run import WatchedRun
from levelhead.report.watch.server import KEY_VARIABLE, WatchServer
from synthetic_run import write_run

PEAK = """
import resource, sys
from pathlib import Path
from levelhead.report.watch.rollouts import Filter, Rollouts
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rollouts = Rollouts(Path(sys.argv[1]))
page = rollouts.page(Filter(), seconds=60)
rollouts.page(Filter(text="needle"), seconds=60)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, page["rollouts"], page["notes"], sep="|")
"""


@pytest.mark.parametrize(
    ("line", "times", "note", "most"),
    [
        (b"{}\n", 16 << 20, f"more than {MOST_ROWS} rollouts", 400),
        (b'{"a": [' + b"[]," * 1_200_000 + b"[]]}\n", 3, "nested", 300),
        (b'{"a": [' + b"[]," * 2_600_000 + b"[]]}\n", 8, f"{LONGEST_LINE >> 20} MiB", 400),
        (b" " * (1 << 20), 200, f"more than {MOST_BYTES >> 20} MiB", 400),
        (b'{"strata": {' + b",".join(b'"k%d": 1' % i for i in range(50_000)) + b"}}\n", 100, "", 400),
    ],
)
def test_a_small_file_of_much_costs_little_memory(
    tmp_path: Path, line: bytes, times: int, note: str, most: int
) -> None:
    with gzip.open(tmp_path / "grpo-000001.jsonl.gz", "wb") as file:
        for _ in range(max(1, times // 1000)):
            file.write(line * min(times, 1000))
    said = subprocess.run([sys.executable, "-c", PEAK, tmp_path], capture_output=True, text=True, check=True).stdout
    kilobytes, _, notes = said.split("|")
    assert int(kilobytes) < most * 1024, said
    assert note == "nested" or note in notes


def test_text_is_found_whatever_its_case_and_escapes(tmp_path: Path) -> None:
    texts = [
        "Stra\u00dfe",
        "caf\u00e9",
        'a "quoted" word',
        "two\nlines",
        "back\\slash",
        "a/b",
        "\u0130stanbul",
        "plain",
    ]
    with gzip.open(tmp_path / "grpo-000001.jsonl.gz", "wt", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            row = {"step": 1, "task": "t", "prompt_id": str(i), "prompt": "?", "completion": text, "reward": 0.0}
            file.write(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n")
    rollouts = Rollouts(tmp_path)
    for i, text in enumerate(texts):
        for wanted in (text, text.upper(), text.casefold()):
            if wanted.casefold() == text.casefold():
                assert i in [row["line"] for row in rollouts.page(Filter(text=wanted), seconds=60)["rows"]], wanted
    assert rollouts.page(Filter(text="prompt_id"), seconds=60)["rows"] == []


def test_links_that_lead_out_of_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "recipe.yaml").write_text("password: hunter2\n")
    (secret / "rows.jsonl").write_text('{"completion": "hunter2", "step": 1}\n')
    rows = (folder / "metrics.jsonl").read_bytes()
    (secret / "metrics.jsonl").write_bytes(rows)
    for name in ("recipe.yaml", "metrics.jsonl"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret / name)
    (folder / "rollouts" / "grpo-000099.jsonl").symlink_to(secret / "rows.jsonl")
    run = WatchedRun(folder, "run")
    run.look()
    shown = json.dumps([run.state(), run.recipe(), run.recipes(), run.findings(), run.rollouts.page(Filter())])
    assert "hunter2" not in shown
    assert run.state()["rows"] == 0
    assert "links that lead out" in run.findings()["note"]
    assert "metrics.jsonl" in run.findings()["note"]


def test_links_within_the_folder_and_a_linked_folder_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=20)
    (folder / "metrics.jsonl").rename(folder / "numbers.jsonl")
    (folder / "metrics.jsonl").symlink_to("numbers.jsonl")
    (tmp_path / "link").symlink_to(folder)
    run = WatchedRun(tmp_path / "link", "run")
    run.look()
    assert run.state()["rows"] > 0
    assert run.rollouts.page(Filter())["rollouts"] > 0
    assert run.links() == []


@pytest.mark.parametrize("path", ["/proc/kmsg", "/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"])
def test_a_file_of_the_kernel_is_not_read(tmp_path: Path, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    (tmp_path / "events.jsonl").symlink_to(path)
    with pytest.raises(InputError, match="kernel"):
        require_regular(tmp_path / "events.jsonl")


def test_an_address_that_is_none_is_a_bad_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = WatchServer([WatchedRun(write_run(tmp_path / "run", steps=5), "run")])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for target in ("http://[::1", "//[", "http://[::1]x:y/", "/api/state?run=["):
            head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nConnection: close\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as peer:
                peer.sendall(head.encode())
                assert peer.recv(200).split(b" ")[1] in {b"400", b"404", b"200"}, target
    finally:
        server.shutdown()
        server.server_close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("key", [" " * 20, "\t" * 16, "a" + " " * 30, "short"])
def test_a_key_of_blanks_is_too_short(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=KEY_VARIABLE):
        WatchServer([WatchedRun(tmp_path, "run")], key=key)
