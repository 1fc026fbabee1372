"""Against a server that speaks vLLM's routes over a policy of ours: agreement, and a name for what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_engine import FakeEngine
from levelhead.errors import EngineError, InputError
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Prompt
from levelhead.rollout.generators.base import Completion, Generator, Remote, Request
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.generator import VllmGenerator
from small_run import alone, codec_ids, tiny_policy

pytestmark = pytest.mark.timeout(120)
LORA = {"r": 4, "alpha": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy in Hugging Face format, as servers begin with it."""
    folder = tmp_path_factory.mktemp("model")
    tiny_policy().save(folder)
    return folder


@pytest.fixture
def serve(model: Path) -> Iterator[Callable[..., FakeEngine]]:
    with ExitStack() as stack:

        def start(*faults: str, **options: Any) -> FakeEngine:
            return stack.enter_context(FakeEngine(options.pop("folder", model), *faults, **options))

        yield start


def section(shared: Path, *engines: FakeEngine, **keys: Any) -> Vllm:
    keys = {"kind": "vllm", "urls": [engine.url for engine in engines], "shared": str(shared), **keys}
    return Vllm(**keys)


@asynccontextmanager
async def generator(policy: Policy, keys: Vllm) -> AsyncIterator[VllmGenerator]:
    made = make_generator(policy, None, keys)
    assert isinstance(made, VllmGenerator)
    try:
        yield made
    finally:
        await made.close()


def trained(policy: Policy, seed: int = 1, size: float = 0.05) -> None:
    """Change the weights as an update does."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.add_(size * torch.randn(weight.shape, generator=draws))


def request(index: int = 0, **controls: Any) -> Request:
    prompt = Prompt(f"p{index}", "task", (), codec_ids()[index : index + 40])
    return Request(prompt, index, Sampling(**{"max_new_tokens": 8, **controls}), 7, index)


def gap(policy: Policy, completion: Completion) -> float:
    """Largest difference between what the server said and a plain forward pass."""
    turn = completion.turn
    logp, _ = alone(policy, turn.context_ids, turn.completion_ids)
    return float((logp.detach() - torch.tensor(turn.behaviour_logprobs)).abs().max())


async def drawn(one: Generator, count: int = 4) -> list[Completion]:
    return list(await asyncio.gather(*(one.generate(request(i)) for i in range(count))))


def told(one: VllmGenerator) -> list[Event]:
    return one.drain_events(1)


async def after_an_update(policy: Policy, keys: Vllm, between: Callable[[], Any] = lambda: None) -> list[Completion]:
    """Sync, draw, change the weights, sync, and draw again."""
    async with generator(policy, keys) as one:
        await one.sync_weights()
        await drawn(one)
        trained(policy)
        between()
        await one.sync_weights()
        return await drawn(one)


@pytest.mark.parametrize("sync", ["files", "adapter"])
async def test_the_server_says_what_the_trainer_says_after_every_update(
    serve: Callable[..., FakeEngine], tmp_path: Path, sync: str
) -> None:
    policy = tiny_policy(**({"lora": LORA} if sync == "adapter" else {}))
    completions = await after_an_update(policy, section(tmp_path, serve(), sync=sync))
    assert max(gap(policy, completion) for completion in completions) < 1e-5
    assert not list(tmp_path.glob("*.part"))


async def test_an_adapter_has_a_new_name_for_every_version_and_the_old_one_is_dropped(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    engine, policy = serve(), tiny_policy(lora=LORA)
    seen: list[set[str]] = []
    async with generator(policy, section(tmp_path, engine, sync="adapter")) as one:
        for seed in range(3):
            trained(policy, seed)
            await one.sync_weights()
            seen.append(set(engine.adapters))
    assert [len(names) for names in seen] == [1, 1, 1]
    assert len(set.union(*seen)) == 3
    assert not list(tmp_path.glob("adapter-*")), "what nobody asks for is removed"


@pytest.mark.parametrize("sync", ["files", "adapter"])
async def test_servers_of_another_user_may_read_the_weights(
    serve: Callable[..., FakeEngine], tmp_path: Path, sync: str
) -> None:
    policy = tiny_policy(**({"lora": LORA} if sync == "adapter" else {}))
    (plain := tmp_path / "plain").touch()
    async with generator(policy, section(tmp_path / "shared", serve(), sync=sync)) as one:
        await one.sync_weights()
        modes = {path.name: path.stat().st_mode for path in (tmp_path / "shared").rglob("*") if path.is_file()}
    assert any(name.endswith(".safetensors") for name in modes)
    assert set(modes.values()) == {plain.stat().st_mode}, modes


async def test_merged_adapters_are_sent_as_whole_weights(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    policy = tiny_policy(lora=LORA)
    completions = await after_an_update(policy, section(tmp_path, serve(), sync="files"))
    assert max(gap(policy, completion) for completion in completions) < 1e-5


async def test_an_older_server_is_asked_by_its_own_route(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    engine, policy = serve("old"), tiny_policy()
    completions = await after_an_update(policy, section(tmp_path, engine))
    assert max(gap(policy, completion) for completion in completions) < 1e-5
    assert "/v1/completions" in engine.calls


async def test_weights_that_have_not_changed_are_not_sent_again(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    engine = serve()
    async with generator(tiny_policy(), section(tmp_path, engine)) as one:
        await one.sync_weights()
        await one.sync_weights()
    assert engine.calls.count("/update_weights") == 1


async def test_a_sync_keeps_the_documented_order(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    engine = serve()
    async with generator(tiny_policy(), section(tmp_path, engine)) as one:
        await one.sync_weights()
    order = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    begin = engine.calls.index("/pause")
    assert engine.calls[begin : begin + 6] == [*order, "/resume"]


@pytest.mark.parametrize(
    ("fault", "cause", "says"),
    [
        ("keeps_cache", "stale-cache", "prefix cache"),
        ("keeps_head", "tied-head", "lm_head"),
        ("breaks_off", "half-update", "HTTP 500"),
        ("loses_half", "half-update", "applied in half"),
        ("ignores", "other-model", "another model"),
    ],
)
async def test_a_sync_that_fails_is_named(
    serve: Callable[..., FakeEngine], tmp_path: Path, fault: str, cause: str, says: str
) -> None:
    engine = serve()
    with pytest.raises(EngineError, match=says) as error:
        await after_an_update(tiny_policy(), section(tmp_path, engine), lambda: engine.faults.add(fault))
    assert error.value.cause == cause
    assert engine.url in str(error.value)
    assert engine.calls[-1] != "/pause"
    assert not engine._paused, "a server must not stay blocked"


async def test_an_update_that_hangs_is_given_up_and_the_server_freed(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    engine = serve("hangs")
    with pytest.raises(EngineError, match=r"hangs.*update_weights") as error:
        await after_an_update(tiny_policy(), section(tmp_path, engine, sync_timeout_s=0.3))
    assert error.value.cause == "hangs"
    assert not engine._paused


async def test_a_server_that_computes_in_a_coarser_type_is_named(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="coarser type") as error:
        await after_an_update(tiny_policy(), section(tmp_path, serve(dtype=torch.bfloat16)))
    assert error.value.cause == "mismatch"


async def test_rounding_is_measured_on_a_policy_that_computes_in_bfloat16(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    policy = tiny_policy()
    policy.compute_dtype = torch.bfloat16
    async with generator(policy, section(tmp_path, serve(dtype=torch.bfloat16))) as one:
        await one.sync_weights()
        trained(policy)
        await one.sync_weights()
        assert one.drain_use()["engine/mismatch/mean"] > 1e-4


async def test_another_base_under_the_adapter_is_named(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    tiny_policy(seed=5).save(tmp_path / "other")
    engine = serve(folder=tmp_path / "other")
    with pytest.raises(EngineError, match="Without the adapter") as error:
        await after_an_update(tiny_policy(lora=LORA), section(tmp_path, engine, sync="adapter"))
    assert error.value.cause == "other-model"


async def test_a_server_without_adapters_is_named_with_the_way_out(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"load_lora_adapter.*levelhead serve policy"):
        await after_an_update(tiny_policy(lora=LORA), section(tmp_path, serve("no_adapters"), sync="adapter"))


@pytest.mark.parametrize("sync", ["files", "adapter"])
async def test_a_restarted_server_gets_the_weights_again(
    serve: Callable[..., FakeEngine], tmp_path: Path, sync: str
) -> None:
    engine = serve()
    policy = tiny_policy(**({"lora": LORA} if sync == "adapter" else {}))
    async with generator(policy, section(tmp_path, engine, sync=sync)) as one:
        trained(policy)
        await one.sync_weights()
        engine.restart()
        await one.sync_weights()  # noticed before a batch ...
        assert [event.code for event in told(one)] == ["engine-restarted"]
        engine.restart()
        completions = await drawn(one)  # ... and in the middle of one
        assert max(gap(policy, completion) for completion in completions) < 1e-5
        assert [event.code for event in told(one)] == ["engine-restarted"]
        assert one.drain_use()["engine/repeated"] >= 1


async def test_a_killed_server_ends_the_run_at_once(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    engine = serve()
    async with generator(tiny_policy(), section(tmp_path, engine)) as one:
        await one.sync_weights()
        engine.kill()
        with pytest.raises(EngineError, match="start it again and resume") as error:
            await drawn(one)
        assert error.value.cause == "lost"


async def test_no_server_at_all_is_told_before_anything_else(tmp_path: Path) -> None:
    async with generator(tiny_policy(), Vllm(kind="vllm", urls=["http://127.0.0.1:9"], shared=str(tmp_path))) as one:
        with pytest.raises(EngineError, match=r"no server answers at http://127\.0\.0\.1:9"):
            await one.sync_weights()


async def test_requests_of_a_dying_server_are_repeated_on_the_other(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    first, second, policy = serve(), serve(), tiny_policy()
    async with generator(policy, section(tmp_path, first, second)) as one:
        await one.sync_weights()
        want = await drawn(one, 8)
        assert first.served, "requests are spread"
        first.dies_after = first.served + 2
        completions = await drawn(one, 8)
        assert [c.turn.completion_ids for c in completions] == [c.turn.completion_ids for c in want]
        events = told(one)
        assert [event.code for event in events] == ["engine-server-lost"]
        assert first.url in events[0].message
        trained(policy)
        await one.sync_weights()
        assert one.drain_use()["engine/servers"] == 1
        first.come_back()
        trained(policy, 2)
        await one.sync_weights()
        assert [event.code for event in told(one)] == ["engine-server-joined"]
        assert max(gap(policy, completion) for completion in await drawn(one)) < 1e-5


async def test_weights_that_change_in_mid_request_are_told_to_the_token(
    serve: Callable[..., FakeEngine], tmp_path: Path
) -> None:
    engine, policy = serve("slow"), tiny_policy()
    policy.codec.stop_ids = frozenset()
    async with generator(policy, section(tmp_path, engine, in_flight="keep")) as one:
        await one.sync_weights()
        served = engine.served
        long = request(max_new_tokens=60)
        under_way = asyncio.ensure_future(one.generate(long))
        while engine.served == served:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        first = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
        trained(policy)
        policy.version = 5
        await one.sync_weights()
        completion = await under_way
    (old, switch), (new, end) = completion.turn.versions
    assert (old, new, end) == (0, 5, 60)
    assert completion.versions == (0, 5)
    assert 0 < switch < 60
    turn = completion.turn
    said = torch.tensor(turn.behaviour_logprobs)
    fresh, _ = alone(policy, turn.context_ids, turn.completion_ids)
    policy.model.load_state_dict(first)
    stale, _ = alone(policy, turn.context_ids, turn.completion_ids)
    assert float((said - stale.detach())[:switch].abs().max()) < 1e-5
    assert float((said - fresh.detach())[switch:].abs().max()) < 1e-5
    assert float((said - stale.detach())[switch:].abs().max()) > 1e-3


async def test_a_server_that_sleeps_is_woken_before_it_draws(serve: Callable[..., FakeEngine], tmp_path: Path) -> None:
    engine, policy = serve(), tiny_policy()
    async with generator(policy, section(tmp_path, engine, sleep=True)) as one:
        await one.sync_weights()
        await one.rest()
        assert engine.asleep
        await one.sync_weights()  # nothing has changed
        assert not engine.asleep
        await one.rest()
        trained(policy)
        await one.sync_weights()
        assert max(gap(policy, completion) for completion in await drawn(one)) < 1e-5


async def test_nothing_is_sent_to_a_server_that_has_not_been_told_of_a_key(
    serve: Callable[..., FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    with pytest.raises(InputError, match="ENGINE_KEY"):
        make_generator(tiny_policy(), None, section(tmp_path, serve(), api_key_env="ENGINE_KEY"))


def test_it_is_a_generator_that_tells_of_its_servers(tmp_path: Path) -> None:
    made = make_generator(tiny_policy(), None, Vllm(kind="vllm", urls=["http://h:1"], shared=str(tmp_path)))
    assert isinstance(made, Generator)
    assert isinstance(made, Remote)
    assert not made.capabilities.reproducible


async def test_a_server_that_sends_what_was_not_asked_for_is_named_and_another_one_asked(
    serve: Callable[..., FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, bad, good = tiny_policy(), serve(), serve()
    async with generator(policy, section(tmp_path, bad, good)) as one:
        await one.sync_weights()
        (member,) = [server for server in one.engine.servers.members if server.url == bad.url]
        sample = member.client.sample

        async def too_much(*args: Any) -> Any:
            reply = await sample(*args)
            (choice,) = reply["choices"]
            choice["token_ids"] *= 9
            choice["logprobs"]["content"] *= 9
            return reply

        monkeypatch.setattr(member.client, "sample", too_much)
        for index in range(4):
            assert len((await one.generate(request(index))).turn.completion_ids) <= 8
        (event,) = one.drain_events(1)
        assert event.code == "engine-bad-reply"
        assert bad.url in event.message
        assert "were asked for" in event.message or "behind a stop token" in event.message
