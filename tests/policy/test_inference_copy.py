"""An inference copy draws what the policy would, keeps its weights while the policy trains, and shares frozen ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from levelhead.policy.backends.cpu.backend import Cpu
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import TrainSampling
from levelhead.records import Prompt, Turn
from levelhead.rollout.generators.local import LocalGenerator
from small_run import codec_ids, tiny_policy

MODELS: dict[str, dict[str, Any]] = {"full": {}, "lora": {"lora": {"r": 2, "modules_to_save": []}}}


@pytest.fixture(params=sorted(MODELS))
def policy(request: pytest.FixtureRequest) -> Policy:
    made = tiny_policy(**MODELS[request.param])
    made.disable_dropout()
    return made


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are in one order, here and in another thread that computes alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draws(policy: Policy) -> list[list[Turn]]:
    ids = codec_ids()
    prompts = [Prompt(str(i), "task", (), ids[i : i + 6]) for i in range(2)]
    return LocalGenerator(policy).sample(prompts, 3, TrainSampling(max_new_tokens=8), seed=1)


def move(policy: Policy) -> None:
    with torch.no_grad():
        for weight in policy.parameters:
            weight.add_(0.05)


def test_a_twin_shares_frozen_weights_and_copies_the_trained_ones(policy: Policy) -> None:
    inference_copy = policy.inference_copy()
    pairs = list(zip(inference_copy.model.parameters(), policy.model.parameters(), strict=True))
    assert all((mine is theirs) != theirs.requires_grad for mine, theirs in pairs)
    assert not any(weight.requires_grad for weight in inference_copy.model.parameters())
    assert len(inference_copy.copied(policy)) == len(policy.parameters)


def test_a_twin_stays_behind_until_it_follows(policy: Policy) -> None:
    inference_copy = policy.inference_copy()
    first = draws(policy)
    assert draws(inference_copy) == first
    move(policy)
    assert draws(inference_copy) == first
    assert draws(policy) != first
    inference_copy.follow(policy)
    assert draws(inference_copy) == draws(policy)


def test_training_leaves_the_modes_of_a_twin_alone(policy: Policy) -> None:
    inference_copy = policy.inference_copy()
    with policy.training():
        assert not any(module.training for module in inference_copy.model.modules())


def test_a_reference_adapter_is_shared_and_switching_to_it_leaves_a_twin_alone() -> None:
    policy = tiny_policy(**MODELS["lora"])
    move(policy)
    policy.keep_reference(trained=True)
    move(policy)
    inference_copy = policy.inference_copy()
    wanted = draws(policy)
    with policy._reference_adapter():
        assert draws(inference_copy) == wanted
    assert len(inference_copy.copied(policy)) == len(policy.parameters)


def test_the_weights_of_a_twin_are_its_own_while_it_samples_by_converted_ones(policy: Policy) -> None:
    """A checkpoint of an asynchronous run is written while another thread samples."""
    policy.compute_dtype = torch.bfloat16
    inference_copy = policy.inference_copy()
    own = inference_copy.copied(policy)
    layer = next(module for module in inference_copy.base.modules() if type(module) is torch.nn.Linear)
    seen: list[tuple[torch.dtype, bool]] = []

    def look(module: torch.nn.Module, _: Any) -> None:
        now = inference_copy.copied(policy)
        same = len(now) == len(own) and all(a.data_ptr() == b.data_ptr() for a, b in zip(now, own, strict=True))
        seen.append((module.weight.dtype, same))

    layer.register_forward_pre_hook(look)
    draws(inference_copy)
    assert set(seen) == {(torch.bfloat16, True)}


@pytest.mark.usefixtures("one_thread")
def test_a_twin_draws_in_one_thread_while_the_policy_trains_in_another(policy: Policy) -> None:
    ids = codec_ids()
    sequences = [TokenSequence(ids[:6], ids[i : i + 9], prefix_group=0) for i in range(4)]

    def gradients() -> list[torch.Tensor]:
        policy.model.zero_grad()
        with policy.training():
            for micro in policy.pack(sequences, 256):
                policy.score(micro).logp.sum().backward()
        return [weight.grad.clone() for weight in policy.parameters if weight.grad is not None]

    inference_copy = policy.inference_copy()
    wanted, drawn = gradients(), draws(inference_copy)
    completions: list[Any] = []
    done = threading.Event()

    def draw() -> None:
        torch.set_num_threads(1)
        while not done.is_set():
            completions.append(draws(inference_copy))

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(20):
            assert all(map(torch.equal, gradients(), wanted))
    finally:
        done.set()
        thread.join()
    assert completions
    assert all(turns == drawn for turns in completions)


def test_a_twin_samples_the_way_the_policy_does(policy: Policy) -> None:
    draws(policy)
    inference_copy = policy.inference_copy()
    assert inference_copy.backend is policy.backend
    assert isinstance(inference_copy.backend, Cpu)
    assert inference_copy.backend.steps
    assert inference_copy.backend.fused_forward(inference_copy) is not None
