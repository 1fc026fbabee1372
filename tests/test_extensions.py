"""What a package adds is used by its name, ours and a stranger's alike, and nothing of ours is imported by the core."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelhead import extensions
from levelhead.doctor.readers import make_reader, recognise
from levelhead.doctor.report import examine

PACKAGE = """
import re
from levelhead.doctor.readers.base import Row, Unread
from levelhead.doctor.table import Table


class Reader:
    signature = re.compile(r"^stranger \\d", re.MULTILINE)

    def __init__(self, extra=None):
        self.format, self.unread, self._rest, self._step = "stranger", Unread(), b"", 0

    def feed(self, chunk):
        *lines, self._rest = (self._rest + chunk).split(b"\\n")
        for line in lines:
            self._step += 1
            yield Row(float(self._step), {"reward": float(line.split()[1])}, None, self._step)

    def close(self):
        return iter(())


class Pages:
    def to_json(self):
        return {"pages": 3}

    def tables(self):
        return [Table("Pages", ("what",), (("three",),))]


def analyse(path):
    return Pages() if path.name == "stranger.log" else None
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of somebody else's, as an installer leaves it."""
    (tmp_path / "stranger.py").write_text(PACKAGE)
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[levelhead.readers]\nstranger = stranger:Reader\n\n[levelhead.analyses]\npages = stranger:analyse\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.names.cache_clear()
    yield tmp_path
    extensions.names.cache_clear()


def test_a_packages_log_is_recognised_read_and_analysed(installed: Path) -> None:
    log = installed / "stranger.log"
    log.write_text("".join(f"stranger {n / 10}\n" for n in range(20)))
    assert recognise(log.read_bytes()) == "stranger"
    assert make_reader("stranger").format == "stranger"
    report = examine(log)
    assert report.log.format == "stranger"
    assert report.history.series("reward").values[-1] == 1.9
    assert json.loads(json.dumps(report.extras))["pages"] == {"pages": 3}
    assert [table.title for table in report.tables] == ["Pages"]


def test_ours_stand_beside_a_strangers_and_go_before_them(installed: Path) -> None:
    assert list(extensions.names("readers")) == ["stranger", "workflow"]
    (installed / "stranger-1.0.dist-info" / "entry_points.txt").write_text("[levelhead.readers]\nworkflow = a:b\n")
    extensions.names.cache_clear()
    assert extensions.names("readers")["workflow"].startswith("levelhead.contrib.")


@pytest.mark.parametrize("group", ["readers", "analyses", "sections", "drawings", "players", "providers", "datasets"])
def test_what_is_listed_is_there(group: extensions.Group) -> None:
    assert all(value is not None for value in extensions.load_all(group).values())


@pytest.mark.parametrize("room", ["cli.main", "doctor.report", "report.page", "report.watch.server", "tasks.registry"])
def test_no_room_of_the_core_imports_what_is_added_before_it_is_used(room: str) -> None:
    """The command line names its commands of other packages when it starts, and imports no more of them than that."""
    code = f"import sys, levelhead.{room}\nprint([m for m in sys.modules if m.startswith('levelhead.contrib.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    few = "['levelhead.contrib.browser', 'levelhead.contrib.browser.serving']"
    assert out.stdout.strip() == (few if room == "cli.main" else "[]")
