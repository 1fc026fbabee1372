from __future__ import annotations

import errno
import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from levelhead.errors import InputError
from levelhead.guard.invariants import Invariants
from levelhead.policy.load import fingerprint, load_checkpoint
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from levelhead.recipe.training import Optimizer
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.checkpoint_files import State, read_state, read_training
from levelhead.training.optim import Updater
from levelhead.training.rundir import RunDir
from small_run import same_weights, tiny_policy


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    run = RunDir(tmp_path / "run")
    run.claim(resume=False)
    return Checkpoints(run, 2, {"sft": 0, "grpo": 10})


def trained(policy: Policy) -> Updater:
    updater = Updater(policy.parameters, Optimizer(), 5)
    for parameter in policy.parameters:
        parameter.grad = torch.ones_like(parameter)
    updater.step()
    return updater


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes: what a full disk looks like to whoever writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_holds_all_that_it_was_given(checkpoints: Checkpoints) -> None:
    policy = tiny_policy()
    updater = trained(policy)
    state = State("grpo", 3, summary={"t": {"start": {"score": 0.5}}}, best=0.25, stream={"t": {"taken": 3}}, lost=2)
    folder = checkpoints.save(policy, state, {"optimizer": updater.optimizer.state_dict(), "updates": 1})
    assert folder.name == "step-000013"
    assert read_state(folder) == state
    assert read_training(folder, policy.device)["updates"] == 1
    section = Model.model_validate({"preset": "tiny", "tiny": _shape(policy), "dtype": "float32"})
    again = load_checkpoint(section, folder)
    assert same_weights(again.base, policy.base)
    assert fingerprint(again) == fingerprint(policy)


def test_numbers_that_are_not_finite_are_no_bare_words_in_the_state(checkpoints: Checkpoints) -> None:
    policy = tiny_policy()
    moved = {"guard": {"invariants": {"moved": math.inf}}}
    folder = checkpoints.save(policy, State("grpo", 1, best=-math.inf, stream=moved), {})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads((folder / "state.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert read_state(folder).best == -math.inf
    invariants = Invariants()
    invariants.load_state_dict({**invariants.state_dict(), **read_state(folder).stream["guard"]["invariants"]})
    assert invariants.state_dict()["moved"] == math.inf


def _shape(policy: Policy) -> dict[str, int]:
    from small_run import TINY

    return dict(TINY)


@pytest.mark.parametrize("size", [2_000, 60_000, 200_000])
def test_a_full_disk_leaves_the_last_good_checkpoint_whole(checkpoints: Checkpoints, size: int) -> None:
    policy = tiny_policy()
    updater = trained(policy)
    training = {"optimizer": updater.optimizer.state_dict(), "updates": 1}
    good = checkpoints.save(policy, State("sft", 1), training)
    with largest_file(size), pytest.raises(InputError, match="no space left while saving checkpoint step-000002"):
        checkpoints.save(policy, State("sft", 2), training)
    assert checkpoints.latest() == good
    assert [path.name for path in good.parent.iterdir()] == [good.name]
    assert read_state(good).step == 1
    assert read_training(good, policy.device)["updates"] == 1


def test_what_a_killed_process_left_half_removed_is_dropped(checkpoints: Checkpoints) -> None:
    policy = tiny_policy()
    training = {"optimizer": trained(policy).optimizer.state_dict(), "updates": 1}
    folders = [checkpoints.save(policy, State("sft", step), training) for step in (1, 2)]
    half = folders[0].with_name("step-000000")
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"")
    checkpoints.prune()
    assert checkpoints.steps() == folders
    old = folders[1].with_name(f".{folders[1].name}.old")
    folders[1].rename(old)  # killed between the two renames of a checkpoint that is written again
    checkpoints.save(policy, State("sft", 2), training)
    assert sorted(path.name for path in old.parent.iterdir()) == [path.name for path in folders]


def test_an_unfinished_checkpoint_is_none(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()

    def die(_folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(policy, "save", die)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(policy, State("sft", 1), {})
    assert checkpoints.latest() is None


def test_errors_that_are_no_full_disk_stay_what_they_are(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()

    def refuse(_folder: Path) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(policy, "save", refuse)
    with pytest.raises(PermissionError):
        checkpoints.save(policy, State("sft", 1), {})


def test_a_folder_without_state_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no checkpoint \(it has no state\.json\)"):
        read_state(tmp_path)
    (tmp_path / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        read_state(tmp_path)


def test_a_state_of_the_first_versions_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"stage": "grpo", "step": 3, "trainer": {"moments": {}}}))
    with pytest.raises(InputError, match=r"state\.json: holds the trainer's state.*--out"):
        read_state(tmp_path)
    path.write_text(json.dumps({"stage": "grpo", "step": 3, "trainer": {}, "identities": {"told": []}}))
    assert read_state(tmp_path).step == 3


def test_a_reference_that_is_lost_is_not_made_up(checkpoints: Checkpoints) -> None:
    with pytest.raises(InputError, match="the reference of this run is lost"):
        checkpoints.load_reference(tiny_policy())


@pytest.mark.parametrize("lora", [{"r": 2}, {"r": 2, "modules_to_save": ["norm"]}])
def test_an_adapter_comes_back_with_its_reference(checkpoints: Checkpoints, lora: dict) -> None:
    policy = tiny_policy(lora=lora, gradient_checkpointing=True)
    before = fingerprint(policy)
    trained(policy)
    policy.keep_reference(trained=True)
    trained(policy)
    folder = checkpoints.save(policy, State("grpo", 1), {})
    shape = _shape(policy)
    section = Model.model_validate(
        {"preset": "tiny", "tiny": shape, "dtype": "float32", "lora": lora, "gradient_checkpointing": True}
    )
    again = load_checkpoint(section, folder)
    again.resume_reference()
    assert fingerprint(again) == fingerprint(policy) == before
    assert again.base.is_gradient_checkpointing
    assert [p.shape for p in again.parameters] == [p.shape for p in policy.parameters]
    micro = policy.pack(_sequences(), 1000)[0]
    assert torch.equal(again.score(micro).logp, policy.score(micro).logp)
    assert torch.equal(again.reference_logp(micro), policy.reference_logp(micro))


def _sequences() -> list:
    from levelhead.policy.packing import TokenSequence

    return [TokenSequence((5, 6, 7), (8, 9, 10, 11))]


def best_step(checkpoints: Checkpoints) -> int:
    return read_state(checkpoints.steps()[0].with_name("best")).step


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.steps()[0].parent.iterdir())


@pytest.mark.parametrize("later", [(3,), (3, 4)])
def test_a_best_policy_that_a_killed_run_comes_by_again_gives_way_to_the_one_before(
    checkpoints: Checkpoints, later: tuple[int, ...]
) -> None:
    policy = tiny_policy()
    checkpoints.save_best(policy, State("grpo", 2))
    newest = checkpoints.save(policy, State("grpo", 2), {})
    for step in later:
        checkpoints.save_best(policy, State("grpo", step))
    assert best_step(checkpoints) == later[-1]
    assert checkpoints.set_aside(newest, asked=False) == []
    assert best_step(checkpoints) == 2
    assert names(checkpoints) == ["best", newest.name]


def test_a_best_policy_is_not_lost_between_two_renames(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    checkpoints.save_best(policy, State("grpo", 2))
    newest = checkpoints.save(policy, State("grpo", 2), {})
    rename = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target.name == "best":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save_best(policy, State("grpo", 3))
    assert not checkpoints.has_best
    checkpoints.set_aside(newest, asked=False)
    assert best_step(checkpoints) == 2


def test_a_best_policy_is_set_aside_where_an_earlier_checkpoint_is_asked_for(checkpoints: Checkpoints) -> None:
    policy = tiny_policy()
    newest = checkpoints.save(policy, State("grpo", 2), {})
    checkpoints.save_best(policy, State("grpo", 3))
    assert [path.name for path in checkpoints.set_aside(newest, asked=True)] == ["aside-best"]
