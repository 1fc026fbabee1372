"""Two processes do one run: the same losses and the same weights as one process, tasks' gradients merged included."""

from __future__ import annotations

import atexit
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sharded_run
from levelhead import train
from levelhead.training.ranks import Ranks
from small_run import recipe


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["stage"] == "grpo"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "checkpoints").glob("step-*/model.safetensors")
    return load_file(path)


@pytest.mark.slow
def test_two_processes_have_the_losses_and_weights_of_one(tmp_path: Path) -> None:
    runs: dict[Path, dict[str, Any]] = {}
    for merge in ("sum", "cagrad"):
        content = recipe(
            tmp_path, grpo__steps=3, grpo__merge__kind=merge, grpo__optimizer__eps=1e-3, checkpoint__keep_last=1,
            checkpoint__best=False, grpo__audit__first=2,
        )  # fmt: skip
        runs[tmp_path / merge] = content | {"sft": None}
    listed = [(folder.name, content, None) for folder, content in runs.items()]
    (tmp_path / "runs.json").write_text(json.dumps(listed), encoding="utf-8")
    launcher = sharded_run.Launcher()
    codes = launcher.run("trains", tmp_path, 2)
    launcher.close()
    assert codes == [0, 0], (tmp_path / "trains-0.err").read_text(encoding="utf-8")[-3000:]
    for together, content in runs.items():
        alone = together.with_name(f"{together.name}-alone")
        train(content, out=alone)
        same_as_alone(alone, together)


def same_as_alone(alone: Path, together: Path) -> None:
    """Hold the run of two processes against that of one."""
    other = together.with_name(f"{together.name}.rank-1")
    for one, first, second in zip(steps(alone), steps(together), steps(other), strict=True):
        compared = {name for name, value in one.items() if isinstance(value, float) and "time" not in name}
        assert {"loss", "grad_norm", "kl", "entropy", "reward"} <= compared
        assert {n: first[n] for n in compared if "audit" not in n} == pytest.approx(
            {n: one[n] for n in compared if "audit" not in n}, rel=2e-3, abs=1e-5, nan_ok=True
        )
        assert [n for n in first if "time" not in n] == [n for n in second if "time" not in n]
        assert all(first[n] == second[n] for n in compared if n in first)
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(together)[name], value, rtol=1e-3, atol=2e-5)
    moments = [
        torch.load(next(f.glob("checkpoints/step-*/training.pt")))["optimizer"]["state"] for f in (together, other)
    ]
    for index, state in moments[0].items():
        assert all(torch.equal(state[name], moments[1][index][name]) for name in ("exp_avg", "exp_avg_sq"))


def test_one_process_is_alone_and_writes_to_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.joined() == Ranks()
    assert Ranks().folder(Path("runs/a")) == Path("runs/a")
    monkeypatch.setattr(Ranks, "gathered", lambda self, own: [own])
    assert Ranks(1, 2).folder(Path("runs/a")) == Path("runs/a.rank-1")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "state.json").write_text("{}", encoding="utf-8")
    assert (Ranks(1, 2).folder(tmp_path / "a", resume=True) / "state.json").read_text(encoding="utf-8") == "{}"
    assert Ranks().totals({"loss": 1.0}) == {"loss": 1.0}


def test_a_process_of_several_pauses_before_it_ends_so_that_the_threads_of_gloo_need_no_interpreter_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, value in {"init_process_group": None, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value, **__: value)
    at_the_end: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_the_end.append(call))
    assert Ranks.joined().count == 2
    assert [(call, pause >= 0.1) for call, pause in at_the_end] == [(time.sleep, True)]


def test_sums_are_added_over_processes_and_extremes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"kl/one": 1.0, "ratio/max|max": 3.0, "ratio/min|min": 0.5}, {"kl/one": 2.0, "ratio/max|max": 7.0}]
    monkeypatch.setattr(Ranks, "gathered", lambda *_: parts)
    assert Ranks(0, 2).totals(parts[0]) == {"kl/one": 3.0, "ratio/max|max": 7.0, "ratio/min|min": 0.5}
