from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from levelhead.doctor.readers import formats, recognise
from levelhead.doctor.readers.sources import read
from levelhead.errors import InputError

ROWS = "".join(f"{{'loss': 0.0, 'reward': {0.1 * i:.2f}, 'reward_std': 0.1}}\n" for i in range(1, 6))


def test_a_missing_path_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nothing.log")


@pytest.mark.parametrize("content", [b"", b"hello world\n", b"\x00\xff" * 100, b"{}", b"[]", b"a,b\n1,2\n"])
def test_a_file_without_metrics_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="--map"):
        read(path)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(ROWS)
    with pytest.raises(InputError, match="openrlhf"):
        read(path, "trlx")


def test_a_given_format_overrides_recognition(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("{'loss': 0.0, 'reward': 0.1, 'entropy_loss': 0.7}\n")
    assert "entropy" in read(path, "openrlhf").history
    assert "entropy" not in read(path, "trl").history


def test_gzipped_logs_are_read_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(ROWS.encode() * 200)
    path = tmp_path / "log.txt.gz"
    path.write_bytes(whole)
    assert read(path).history.rows == 1000
    path.write_bytes(whole[:-40])
    assert read(path).history.rows > 0


def test_a_trainers_folder_gives_its_latest_state(tmp_path: Path) -> None:
    for number in (90, 1000):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        history = [{"step": i, "loss": 0.0, "reward": 0.1} for i in range(number // 10)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    log = read(tmp_path)
    assert log.format == "trl-state"
    assert log.history.rows == 100


def test_prime_rls_two_processes_are_joined(tmp_path: Path) -> None:
    for part, key in (("orchestrator", "train/agg/all/reward/mean"), ("trainer", "mismatch_kl/all/mean")):
        (tmp_path / part).mkdir()
        lines = [json.dumps({"step": i, "time": 1.7e9 + i, key: 0.1}) for i in range(3)]
        (tmp_path / part / "metrics.jsonl").write_text("\n".join(lines))
    log = read(tmp_path)
    assert log.history.rows >= 3
    assert log.history.series("reward").steps == log.history.series("mismatch/kl").steps == [0, 1, 2]
    assert "step_time" not in log.history


def test_of_a_folder_of_logs_the_one_with_the_most_rows_is_read_and_the_rest_reported(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(ROWS)
    (tmp_path / "b.log").write_text(ROWS * 3)
    (tmp_path / "notes.txt").write_text("nothing")
    log = read(tmp_path)
    assert log.history.rows == 15
    assert log.unread.to_json()[-1]["why"] == "other files of the folder: 2"
    (tmp_path / "notes.txt").unlink()
    assert read(tmp_path).unread.to_json()[-1]["why"] == "other files of the folder: 1"


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log in this folder"):
        read(tmp_path)


def test_recognition_never_names_a_format_that_cannot_be_asked_for() -> None:
    for head in (b":W&B\xe1\xbe\x00", ROWS.encode(), b'{"step": 1, "data": {"a": 1}}', b"a,b\n1,2", b"\xff\xfe", b""):
        assert recognise(head) in formats()
