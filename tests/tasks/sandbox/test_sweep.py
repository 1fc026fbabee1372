"""Whatever a program makes of its folder, nothing is left of it, and nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from levelhead.tasks.sandbox.surroundings import scratch, sweep


def test_a_folder_too_deep_for_a_path_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "deep"
    place.mkdir()
    here = Path.cwd()
    os.chdir(place)
    try:
        for _ in range(1500):
            Path("d" * 50).mkdir()
            os.chdir("d" * 50)
        Path("file").write_text("x")
    finally:
        os.chdir(here)
    sweep(place)
    assert not place.exists()


def test_folders_that_nobody_may_open_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "closed"
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "file").write_text("x")
    (place / "a" / "b").chmod(0)
    (place / "a").chmod(0)
    sweep(place)
    assert not place.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("mine")
    (outside / "file").chmod(0o640)
    place = tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "folder").symlink_to(outside)
    (place / "inner" / "file").symlink_to(outside / "file")
    (place / "inner" / "loop").symlink_to("..")
    sweep(place)
    assert not place.exists()
    assert (outside / "file").read_text() == "mine"
    assert (outside / "file").stat().st_mode & 0o777 == 0o640
    assert outside.stat().st_mode & 0o777 == 0o755


def test_a_scratch_folder_is_gone_after_an_error() -> None:
    folders = []

    def fail() -> None:
        with scratch() as folder:
            folders.append(folder)
            assert folder.stat().st_mode & 0o777 == 0o700
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert not folders[0].exists()
