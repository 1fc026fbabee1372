"""Two processes that divide a policy's weights do one run: what it logs, saves and survives is that of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sharded_run
from levelhead import train
from levelhead.policy.load import load_checkpoint
from levelhead.policy.policy import Policy
from levelhead.training.sharding.shards import SHARDS, snapshot, with_shards, write_shards
from sharded_run import assert_clipped, assert_same_numbers
from small_run import events, metrics, tiny_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def launcher() -> Iterator[sharded_run.Launcher]:
    process = sharded_run.Launcher()
    yield process
    process.close()


@pytest.fixture(scope="module")
def folder(launcher: sharded_run.Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have made all runs of :func:`sharded_run.cases`."""
    path = tmp_path_factory.mktemp("sharded")
    codes = launcher.run("cases", path, 2)
    assert codes == [1, -signal.SIGKILL], said(path, "cases")
    return path


def said(folder: Path, deed: str, rank: int = 0) -> str:
    return (folder / f"{deed}-{rank}.err").read_text(encoding="utf-8")[-3000:]


def alone(folder: Path, name: str, **options: Any) -> Path:
    """The folder of the run that one process makes of the same recipe."""
    path = folder / f"{name}-alone"
    train(sharded_run.recipes(folder)[name], out=path, **options)
    return path


def codes(folder: Path) -> list[tuple[int, str, str | None]]:
    return [(event["step"], event["code"], event.get("action")) for event in events(folder)]


def test_a_run_of_all_weights_has_the_numbers_of_one_process(folder: Path) -> None:
    one = alone(folder, "full")
    last = metrics(one)[-2]
    assert {"loss", "grad_norm", "merge/weight/one", "guard/scale", "kl"} <= last.keys()
    assert any(name.startswith("audit/") for row in metrics(one)[2:] for name in row)
    assert_clipped(folder / "full", 1.0)
    assert_same_numbers(one, folder / "full")
    assert "shrink" in {action for _, _, action in codes(one)}
    assert codes(folder / "full") == codes(one)


def test_a_run_of_an_adapter_has_the_numbers_of_one_process(folder: Path) -> None:
    one = alone(folder, "lora")
    assert_clipped(folder / "lora", 0.3)
    assert_same_numbers(one, folder / "lora")
    assert codes(folder / "lora") == codes(one)
    last = f"step-{3 + sharded_run.STEPS:06d}"
    saved = folder / "lora" / "checkpoints" / last
    for name in ("adapter_model.safetensors", "reference/adapter_model.safetensors"):
        wanted = load_file(one / "checkpoints" / last / name)
        weights = load_file(saved / name)
        assert weights.keys() == wanted.keys()
        assert all(torch.allclose(weights[key], wanted[key], rtol=1e-3, atol=2e-5) for key in wanted)


def test_a_missing_task_a_nan_and_a_rollback_leave_both_processes_where_one_is(folder: Path) -> None:
    with sharded_run.disturbed(alone=True) as observers:
        one = alone(folder, "disturbed", observers=observers)
    expected = codes(one)
    assert (sharded_run.BROKEN_AT, "nonfinite", "skip") in expected
    assert codes(folder / "disturbed") == expected
    assert codes(folder / "disturbed.rank-1") == expected
    assert_same_numbers(one, folder / "disturbed")


def test_a_killed_process_ends_the_others_and_two_launchers_resume(folder: Path) -> None:
    assert "PeerError: another process has ended" in said(folder, "cases")
    content = sharded_run.recipes(folder)["killed"]
    (folder / "killed.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    _two_agents(folder, sharded_run.free_port())
    assert_clipped(folder / "killed", 1.0)
    one = alone(folder, "killed")
    assert_same_numbers(one, folder / "killed")
    assert not {"resume-differs", "identity-unchecked"} & {code for _, code, _ in codes(folder / "killed")}


def _two_agents(folder: Path, port: int) -> None:
    """Two agents of ``torchrun`` on one machine, with a process each, as on two machines.

    Agents wait for each other for up to five minutes once their processes are done: that wait is not ours.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts=0"),
        *("--rdzv-id", "levelhead", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"),
        *("--local-addr", "127.0.0.1", "-m", "levelhead.cli", "train", str(folder / "killed.yaml")),
        *("--out", str(folder / "killed"), "--resume"),
    ]
    env = {**os.environ, **sharded_run.environment()}
    said_by = [folder / f"agent-{i}.txt" for i in range(2)]
    agents = []
    for path in said_by:  # a pipe that nobody reads fills up, and holds up who writes to it
        with path.open("w", encoding="utf-8") as file:
            agents.append(subprocess.Popen(command, env=env, stderr=file))
    end, begun, idle = time.monotonic() + 240, False, 0
    while any(agent.poll() is None for agent in agents) and idle < 20:
        working = any(agent.poll() is None and _children(agent.pid) for agent in agents)
        begun |= working
        idle = idle + 1 if begun and not working else 0
        assert time.monotonic() < end, [path.read_text(encoding="utf-8")[-3000:] for path in said_by]
        time.sleep(0.5)
    for agent, path in zip(agents, said_by, strict=True):
        if agent.poll() is None:
            agent.kill()
            agent.wait()
        else:
            assert agent.returncode == 0, path.read_text(encoding="utf-8")[-3000:]


def _children(pid: int) -> list[str]:
    """Living processes that a process has started."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return [state for state in shown.split() if not state.startswith("Z")]


def test_a_checkpoint_of_two_processes_is_read_by_one_and_then_by_three_to_the_bit(
    folder: Path, launcher: sharded_run.Launcher
) -> None:
    checkpoint = folder / "full" / "checkpoints" / f"step-{sharded_run.STEPS:06d}"
    whole, state = _read(checkpoint)
    exported = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(exported[name], weight) for name, weight in whole["model"].items())
    (folder / "one").mkdir()
    policy = scrambled(checkpoint)
    for name, parameter in policy.model.named_parameters():
        parameter.data.copy_(whole["model"][name])
    rest = write_shards(folder / "one" / SHARDS, policy, state)
    torch.save(rest, folder / "one" / "training.pt")

    assert launcher.run("reshard", folder, 3) == [3, 3, -signal.SIGKILL], said(folder, "reshard")
    three = torch.load(folder / "gathered.pt")
    assert three["model"].keys() == whole["model"].keys()
    assert all(torch.equal(three["model"][name], weight) for name, weight in whole["model"].items())
    assert three["optimizer"].keys() == whole["optimizer"].keys()
    for index, moments in whole["optimizer"].items():
        assert all(torch.equal(three["optimizer"][index][key], value) for key, value in moments.items())
    for rank in (0, 1):  # the third one hung after that
        assert "has not answered for 3 s" in (folder / f"hung-{rank}.txt").read_text(encoding="utf-8")


def scrambled(checkpoint: Path) -> Policy:
    """A policy of a checkpoint's shape with other weights."""
    policy = load_checkpoint(sharded_run.shape(), checkpoint)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.fill_(0.5)
    return policy


def _read(checkpoint: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What a checkpoint holds, read by one process into a policy of other weights; and the state as it is."""
    policy = scrambled(checkpoint)
    saved = torch.load(checkpoint / "training.pt", weights_only=True)
    state = with_shards(saved, checkpoint, policy)
    model = {name: parameter.detach() for name, parameter in policy.model.named_parameters()}
    assert all({"exp_avg", "exp_avg_sq", "step"} <= moments.keys() for moments in state["optimizer"]["state"].values())
    assert len(snapshot(state)) == len(policy.parameters)
    return {"model": model, "optimizer": state["optimizer"]["state"]}, state


def test_what_is_damaged_in_shards_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "step-000001" / SHARDS).mkdir(parents=True)
    with pytest.raises(Exception, match=f"{SHARDS}: damaged: it cannot be read"):
        with_shards({"optimizer": {"state": {}}}, tmp_path / "step-000001", tiny_policy())
    assert json.loads((folder / "full" / "summary.json").read_text(encoding="utf-8"))
