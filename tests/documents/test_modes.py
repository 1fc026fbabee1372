"""What is written for others is as readable as what its user writes by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelhead.documents.modes import open_to_readers


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def closed(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    path.chmod(0o600)
    return path


def test_files_of_a_folder_get_the_mode_of_a_plain_file(umask: int, tmp_path: Path) -> None:
    files = [closed(tmp_path / "weights"), closed(tmp_path / "reference" / "weights")]
    open_to_readers(tmp_path)
    assert {mode(file) for file in files} == {0o666 & ~umask}
    assert sorted(tmp_path.rglob("*")) == sorted([*files, tmp_path / "reference"]), "nothing is left behind"


def test_one_file_is_meant_alone(umask: int, tmp_path: Path) -> None:
    file, beside = closed(tmp_path / "weights"), closed(tmp_path / "key")
    open_to_readers(file)
    assert (mode(file), mode(beside)) == (0o666 & ~umask, 0o600)


def test_what_a_link_points_to_stays_as_it_is(tmp_path: Path) -> None:
    own = closed(tmp_path / "own" / "key")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "link").symlink_to(own)
    open_to_readers(tmp_path / "export")
    assert mode(own) == 0o600
