"""What several processes divide besides the model, and that what fails in one of them fails in all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from levelhead.errors import EngineError, InputError, PeerError, RewardError
from levelhead.preflight import run as preflight_run
from levelhead.preflight.check import NEEDS, Message, Outcome
from levelhead.recipe import validate
from levelhead.recipe.generator import Local, Vllm
from levelhead.training.ranks import Ranks, _portable, waiting_for_peers
from levelhead.training.sharding.setup import (
    cache_events,
    check_divisible,
    check_same,
    divided,
    loading,
    network_file_system,
    servers,
)
from small_run import recipe

JUDGE = {"base_url": "http://localhost:1/v1", "model": "m", "concurrency": 9, "max_calls": 101, "cache": "/data/c.db"}


def judged(folder: Path) -> Any:
    return validate({**recipe(folder), "tasks": [{"kind": "faithfulness", "judge": JUDGE}]})


class Fake(Ranks):
    """The first of two processes, beside one that sends what the test says."""

    other: Any = None

    def gathered(self, own: Any) -> list[Any]:
        return [own, self.other]


def fake(other: Any) -> Fake:
    ranks = Fake(0, 2)
    object.__setattr__(ranks, "other", other)
    return ranks


def test_calls_under_way_and_budgets_are_divided_by_the_number_of_processes(tmp_path: Path) -> None:
    whole = judged(tmp_path)
    share = divided(whole, Ranks(0, 4)).tasks[0].judge
    assert (share.concurrency, share.max_calls, share.max_total_tokens) == (2, 25, None)
    assert divided(whole, Ranks(0, 32)).tasks[0].judge.concurrency == 1
    assert divided(whole, Ranks()) is whole
    assert whole.tasks[0].judge.max_calls == 101


def test_requests_under_way_at_servers_are_divided_too(tmp_path: Path) -> None:
    local = validate(recipe(tmp_path))
    section = Vllm(kind="vllm", urls=["http://h:1"], shared="s", concurrency=64)
    served = local.model_copy(update={"generator": section})
    assert servers(served, Ranks(1, 4)) == section.model_copy(update={"concurrency": 16})
    assert servers(served, Ranks()) is section
    assert servers(local, Ranks(1, 4)) == Local()


def test_where_servers_draw_the_first_process_alone_loads_the_weights(tmp_path: Path) -> None:
    keys = {"kind": "vllm", "urls": ["http://h:1"], "shared": str(tmp_path)}
    changes = {"generator": keys, "grpo__loss": {"importance": "token_truncate"}, "distributed": {"shard": "full"}}
    served = validate(recipe(tmp_path, **changes))
    assert [loading(served, Ranks(rank, 3), checks=False) for rank in range(3)] == ["host", "shape", "shape"]
    drawn_here = validate(recipe(tmp_path, distributed={"shard": "full"}))
    whole = validate(recipe(tmp_path, **{**changes, "distributed": {"shard": "none"}}))
    for needs in (drawn_here, whole):
        assert loading(needs, Ranks(1, 3), checks=False) == "whole"
    checked = [loading(served, Ranks(rank, 3), checks=True) for rank in range(3)]
    assert checked == ["whole", "shape", "shape"], "the first process makes the preflight"
    assert loading(served, Ranks(), checks=False) == "whole"


def test_an_engine_that_fails_in_one_process_fails_in_all_with_its_cause() -> None:
    with pytest.raises(EngineError, match="gone") as error:
        fake((None, EngineError("gone", "lost"))).agreed(lambda: None)
    assert error.value.cause == "lost"
    assert _portable(EngineError("gone", "lost")).cause == "lost"  # type: ignore[attr-defined]


def outcome(name: str) -> Outcome:
    return Outcome(name, "pass", Message("", ""))


def test_the_first_process_that_holds_weights_makes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def checks(_maker: Any, need: str) -> list[Outcome]:
        made.append(need)
        return [outcome(need)]

    monkeypatch.setattr(preflight_run._Runner, "make", checks)
    for rank, device in enumerate(("cpu", "meta")):
        ranks = Told(rank, 2)
        report = preflight_run.preflight(on(torch.device(device)), ranks=ranks)
        assert [check.name for check in report.checks] == list(NEEDS)
        assert ranks.meetings == 1 + len(NEEDS), "nobody waits for more than one kind of checks at a time"
        assert made == (list(NEEDS) if rank == 0 else [])
        made.clear()


class Told(Ranks):
    """One of two processes, of which the first has weights and makes the checks."""

    def gathered(self, own: Any) -> list[Any]:
        object.__setattr__(self, "meetings", self.meetings + 1)
        if isinstance(own, bool):
            return [True, False]
        return [([outcome(NEEDS[self.meetings - 2])], None), ([], None)]

    meetings = 0


def on(device: torch.device) -> Any:
    """As much of a setup as tells where its weights are."""
    return SimpleNamespace(policy=SimpleNamespace(device=device))


def test_episodes_are_divided_too(tmp_path: Path) -> None:
    whole = validate({**recipe(tmp_path), "tasks": [{"kind": "browser", "pages": 6}]})
    assert divided(whole, Ranks(1, 2)).tasks[0].pages == 3


def test_a_file_of_replies_on_a_network_file_system_is_warned_of(tmp_path: Path) -> None:
    (event,) = cache_events(judged(tmp_path), lambda _: "nfs4")
    assert event.severity == "warning"
    assert "tasks.0.judge.cache: /data/c.db lies on a network file system (nfs4)" in event.message
    assert not list(cache_events(judged(tmp_path), lambda _: None))


def test_the_nearest_mount_tells_the_file_system() -> None:
    mounts = ["/dev/sda / ext4 rw 0 0", "host:/x /mnt nfs4 rw 0 0", "tmpfs /mnt/local\\040disk tmpfs rw 0 0", "broken"]
    assert network_file_system("/mnt/run/cache.db", mounts) == "nfs4"
    assert network_file_system("/mnt/local disk/cache.db", mounts) is None
    assert network_file_system("/mntx/cache.db", mounts) is None
    assert network_file_system("/home/c", ["sshfs#h /home fuse.sshfs rw 0 0"]) == "fuse.sshfs"


def test_what_fails_in_one_process_fails_in_all() -> None:
    with pytest.raises(RewardError, match="parity gave text"):
        fake((None, RewardError("parity gave text"))).agreed(lambda: 1)
    with pytest.raises(ZeroDivisionError):
        fake((1, None)).agreed(lambda: 1 // 0)
    assert fake((2, None)).agreed(lambda: 1) == [1, 2]


def test_only_what_is_said_of_other_processes_is_taken_for_their_loss() -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(PeerError, match="has not answered for 5 s"), waiting_for_peers(5.0):
        raise lost
    with pytest.raises(RuntimeError, match="Connection closed"), waiting_for_peers(5.0, count=1):
        raise lost
    with pytest.raises(RuntimeError, match="connection refused"), waiting_for_peers(5.0):
        raise RuntimeError("connection refused by the judge")


def test_processes_that_see_different_checkpoints_do_not_go_on() -> None:
    with pytest.raises(InputError, match="process 0 from step-000002, process 1 from the start"):
        check_same(fake(None), Path("a/step-000002"))
    check_same(fake("step-000002"), Path("b/step-000002"))


@pytest.mark.parametrize("kind", ["muon", "adamw_8bit"])
def test_an_optimizer_that_needs_whole_weights_is_refused_where_they_are_divided(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"sft.optimizer.kind: {kind} needs whole weights"):
        check_divisible(validate(recipe(tmp_path, sft__optimizer__kind=kind)))
