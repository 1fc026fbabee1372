"""Damage to a saved folder is seen, named, and answered with the newest whole checkpoint before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from levelhead.policy import manifest

FILES = ("model.safetensors", "training.pt", "state.json", "reference/adapter_model.safetensors")


def saved(folder: Path, *, sums: bool = True) -> Path:
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(range(64))
    (folder / "reference").mkdir(parents=True)
    for name in FILES:
        content = tensors if name.endswith(".safetensors") else b'{"step": 3}' if name == "state.json" else b"PK" * 50
        (folder / name).write_bytes(content)
    if sums:
        manifest.write(folder)
    return folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "one bit": flip,
    "gone": lambda path: path.unlink(),
}


def test_a_folder_that_nobody_touched_is_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-000001")
    (folder / "notes.txt").write_text("a file of the user's own", encoding="utf-8")
    assert manifest.damage(folder) is None


@pytest.mark.parametrize("kind", sorted(DAMAGES))
@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_every_file_is_named(tmp_path: Path, name: str, kind: str) -> None:
    whole, folder = saved(tmp_path / "step-000001"), saved(tmp_path / "step-000002")
    DAMAGES[kind](folder / name)
    with pytest.raises(manifest.DamagedError) as error:
        manifest.check(folder)
    assert error.value.whole == whole
    assert str(error.value).startswith(f"{folder / name}: damaged: ")
    assert str(error.value).endswith(f"the newest whole checkpoint before it is {whole}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1}', '{"files": {"a": 1}}', '{"files": {"a": {}}}'])
def test_a_damaged_manifest_is_named_itself(tmp_path: Path, text: str) -> None:
    folder = saved(tmp_path / "step-000001")
    (folder / manifest.FILE).write_text(text, encoding="utf-8")
    with pytest.raises(manifest.DamagedError, match=r"manifest\.json: damaged"):
        manifest.check(folder)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_empty_are_seen_without_a_manifest_too(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "step-000001", sums=False)
    (folder / "training.pt").unlink()
    assert manifest.damage(folder) is None
    (folder / name).write_bytes(b"")
    assert manifest.damage(folder) == (name, "it is empty")


def test_tensors_that_are_cut_off_are_seen_without_a_manifest_too(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-000001", sums=False)
    (folder / "training.pt").unlink()
    DAMAGES["cut off"](folder / "model.safetensors")
    assert manifest.damage(folder) == ("model.safetensors", "it has 131 bytes, and its header speaks of 134")


def test_the_newest_whole_one_skips_damaged_newer_and_strange_ones(tmp_path: Path) -> None:
    folders = [saved(tmp_path / f"step-{n:06d}") for n in (1, 2, 3, 4, 5)]
    saved(tmp_path / "step-000003-copy")
    saved(tmp_path / "aside-step-000002")
    best = saved(tmp_path / "best")
    flip(folders[2] / "training.pt")
    (folders[1] / "state.json").unlink()
    assert manifest.newest_whole(folders[3]) == folders[0]
    assert manifest.newest_whole(best) == folders[4]
    assert manifest.newest_whole(folders[0]) is None
    assert manifest.step_folders(tmp_path) == folders


def test_a_pattern_looks_at_some_files_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-000001")
    flip(folder / "state.json")
    assert manifest.damage(folder, "*.safetensors") is None
    flip(folder / "reference" / "adapter_model.safetensors")
    assert manifest.damage(folder, "*.safetensors") is not None
