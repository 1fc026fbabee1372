"""The optimizer's identities: sound updates are left alone, and each way to break one is told of by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from levelhead.recipe.training import Optimizer
from levelhead.training.optim import Updater
from oracle.stepping import Stepping
from oracle.violation import Violation

RECIPE = Optimizer(
    learning_rate=0.01, warmup_steps=2, schedule="cosine", final_fraction=0.1, weight_decay=0.1, max_grad_norm=0.5
)
UPDATES = 8


class Toy:
    """As much of a policy as the optimizer knows: trained, frozen and reference weights."""

    sum_over_ranks, sharded = None, False

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict({"a": nn.Linear(6, 5), "b": nn.Linear(5, 4), "frozen": nn.Linear(6, 6)}).to(dtype)
        self.model["frozen"].requires_grad_(False)
        self.reference = nn.Linear(3, 3)
        self.dtype = dtype

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def matrices(self) -> list[nn.Parameter]:
        return [p for p in self.parameters if p.ndim == 2]

    def reference_named(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.reference.named_parameters())

    def backward(self, number: int) -> None:
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(number)).to(self.dtype)
        hidden = self.model["a"](self.model["frozen"](x)).relu()
        (self.model["b"](hidden) * (1 + number % 3)).square().mean().backward()


class Bench:
    """Some updates by the real updater, watched; a test may break them at any place."""

    def __init__(self, recipe: Optimizer = RECIPE, dtype: torch.dtype = torch.float32) -> None:
        self.toy, self.recipe = Toy(dtype), recipe
        self.updater = Updater(self.toy.parameters, recipe, UPDATES, self.toy.matrices)
        self.factor, self.logged, self.norm = 1.0, 1.0, 1.0
        self.prepare: Callable[[Bench], None] = lambda _: None
        self.unclipped: Callable[[Bench, int], None] = lambda *_: None
        self.clipped: Callable[[Bench, int], None] = lambda *_: None
        self.stepped: Callable[[Bench, int], None] = lambda *_: None
        self.step: Callable[[Bench, int], None] = lambda bench, _: bench.updater.step()
        self.skips = False
        self.stepping: Any = None

    def watch(self) -> None:
        self.stepping = Stepping(self.toy, self.updater, UPDATES)  # type: ignore[arg-type]

    def run(self, updates: int = UPDATES) -> list[Violation]:
        if self.stepping is None:
            self.watch()
        self.prepare(self)
        violations: list[Violation] = []
        for number in range(updates):
            self.toy.backward(number)
            self.unclipped(self, number)
            self.updater.factor = self.factor
            rate = self.updater.learning_rate * self.logged
            self.stepping.gradient()
            norm = self.updater.prepare() * self.norm
            self.clipped(self, number)
            violations += self.stepping.clipped(norm, self.recipe.max_grad_norm)
            self.step(self, number)
            violations += self.stepping.finish(rate, self.factor, skipped=self.skips)
            violations += self.stepping.frozen()
            self.stepped(self, number)
        return violations

    def codes(self) -> set[str]:
        return {violation.code for violation in self.run()}


def first(bench: Bench) -> nn.Parameter:
    return bench.toy.parameters[0]


KINDS = {
    "cosine": RECIPE,
    "linear": RECIPE.model_copy(update={"schedule": "linear", "final_fraction": 0.0, "warmup_steps": 0}),
    "constant": RECIPE.model_copy(update={"schedule": "constant", "weight_decay": 0.0}),
    "all warm-up": RECIPE.model_copy(update={"warmup_steps": 20}),
    "no decay of moments": RECIPE.model_copy(update={"betas": (0.0, 0.0), "eps": 1e-3}),
    "tiny": RECIPE.model_copy(update={"learning_rate": 1e-9}),
    "muon": RECIPE.model_copy(update={"kind": "muon"}),
}


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sound_updates_are_left_alone(name: str, dtype: torch.dtype) -> None:
    if name == "muon" and dtype == torch.bfloat16:
        pytest.skip("torch's Muon is for float32 here")
    bench = Bench(KINDS[name], dtype)
    assert bench.run() == []
    assert bench.stepping.update == UPDATES


def test_a_guard_lowers_the_rate_and_that_is_known() -> None:
    bench = Bench()
    bench.factor = 0.25
    assert bench.run() == []


def test_an_emptied_optimizer_is_sound_where_it_was_meant() -> None:
    bench = Bench()

    def empty(bench: Bench, number: int) -> None:
        if number == 3:
            bench.updater.optimizer.state.clear()
            bench.stepping.restarted()

    bench.stepped = empty
    assert bench.run() == []


def test_a_weight_that_no_gradient_reaches_is_no_fault() -> None:
    bench = Bench()

    def drop(bench: Bench, number: int) -> None:
        if number % 2:
            first(bench).grad = None

    bench.unclipped = drop
    assert bench.run() == []


def test_a_resumed_optimizer_goes_on_with_its_moments() -> None:
    bench = Bench()
    bench.run(4)
    fresh = Bench()
    fresh.toy.model.load_state_dict(bench.toy.model.state_dict())
    fresh.updater.load(bench.updater.state_dict())
    fresh.watch()
    fresh.stepping.update = 4
    assert fresh.run(4) == []


def stepped_twice(bench: Bench, _: int) -> None:
    bench.updater.optimizer.step()
    bench.updater.step()


def counted_twice(bench: Bench, _: int) -> None:
    bench.updater.step()
    bench.updater.done += 1


def never_stepped(bench: Bench, _: int) -> None:
    bench.updater.finish()


def forget_steps(bench: Bench, _: int) -> None:
    for state in bench.updater.optimizer.state.values():
        state["step"].zero_()


def forget_moments(bench: Bench, _: int) -> None:
    for state in bench.updater.optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


def set_groups(**settings: Any) -> Callable[[Bench, int], None]:
    def change(bench: Bench, _: int) -> None:
        for group in bench.updater.optimizer.param_groups:
            group.update(settings)

    return change


def in_between(change: Callable[[Bench], None]) -> Callable[[Bench], None]:
    """Change something after the gradient has been looked at, and before the optimizer reads it."""

    def prepare(bench: Bench) -> None:
        bench.updater.optimizer.register_step_pre_hook(lambda *_: change(bench))

    return prepare


def scale(factor: float) -> Callable[[Bench], None]:
    def change(bench: Bench) -> None:
        for parameter in bench.toy.parameters:
            assert parameter.grad is not None
            parameter.grad *= factor

    return change


def coupled_decay(bench: Bench) -> None:
    for group in bench.updater.optimizer.param_groups:
        group["weight_decay"] = 0.0
    for parameter in bench.toy.parameters:
        assert parameter.grad is not None
        parameter.grad += 0.1 * parameter.detach()


def no_gradient_of_one(bench: Bench) -> None:
    grad = first(bench).grad
    assert grad is not None
    grad.zero_()


def put_back(whole: bool) -> Callable[[Bench], None]:
    """Weights that are put back as soon as the optimizer has moved them."""

    def prepare(bench: Bench) -> None:
        parameters = bench.toy.parameters if whole else bench.toy.parameters[:1]
        copies = [parameter.detach().clone() for parameter in parameters]
        real = torch.optim.AdamW.step

        def restore(*_: Any) -> None:
            for parameter, before in zip(parameters, copies, strict=True):
                parameter.data.copy_(before)

        hooks = bench.updater.optimizer._optimizer_step_post_hooks
        mine = dict(hooks)
        hooks.clear()
        bench.updater.optimizer.register_step_post_hook(restore)
        hooks.update(mine)  # the watch comes after
        assert real is torch.optim.AdamW.step

    return prepare


def other_weights(bench: Bench) -> None:
    bench.updater.optimizer.param_groups[0]["params"] = [nn.Parameter(p.detach().clone()) for p in bench.toy.parameters]


def one_weight_less(bench: Bench) -> None:
    bench.updater.optimizer.param_groups[0]["params"].pop()


def one_weight_more(bench: Bench) -> None:
    bench.updater.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def not_clipped(bench: Bench, _: int) -> None:
    bench.recipe = bench.recipe.model_copy(update={"max_grad_norm": 0.01})


def clipped_again(bench: Bench, _: int) -> None:
    torch.nn.utils.clip_grad_norm_(bench.toy.parameters, 0.1)


def clipped_one_by_one(bench: Bench, _: int) -> None:
    for parameter in bench.toy.parameters:
        torch.nn.utils.clip_grad_norm_([parameter], 0.05)


def frozen_moves(bench: Bench, number: int) -> None:
    bench.toy.model["frozen"].weight.data += 0.1


def reference_moves(bench: Bench, number: int) -> None:
    bench.toy.reference.weight.data.mul_(1.01)


def frozen_bias_moves(bench: Bench, number: int) -> None:
    bench.toy.model["frozen"].bias.data.copy_(torch.full((6,), float(number)))


MUTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "the schedule is twice as long": (
        "learning-rate",
        {"prepare": lambda bench: setattr(bench.updater, "steps", 2 * UPDATES)},
    ),
    "the rate is overwritten after the schedule": ("learning-rate", {"clipped": set_groups(lr=0.01)}),
    "the rate that is logged is another one": ("learning-rate", {"logged": 0.5}),
    "the schedule steps twice an update": ("update-count", {"step": counted_twice}),
    "the optimizer steps twice an update": ("update-count", {"step": stepped_twice}),
    "the optimizer never steps": ("update-count", {"step": never_stepped}),
    "Adam's count is lost": ("update-count", {"stepped": forget_steps}),
    "betas of another optimizer": ("optimizer-settings", {"clipped": set_groups(betas=(0.8, 0.95))}),
    "eps of another optimizer": ("optimizer-settings", {"clipped": set_groups(eps=1e-3)}),
    "weights do not decay": ("optimizer-settings", {"clipped": set_groups(weight_decay=0.0)}),
    "an optimizer of a copy": ("optimizer-coverage", {"prepare": other_weights}),
    "a weight is left out": ("optimizer-coverage", {"prepare": one_weight_less}),
    "a weight of nobody": ("optimizer-coverage", {"prepare": one_weight_more}),
    "one weight is put back": ("weights-not-moved", {"prepare": put_back(whole=False)}),
    "all weights are put back": ("weights-not-moved", {"prepare": put_back(whole=True)}),
    "the gradients come too late": (
        "weights-not-moved",
        {"prepare": in_between(scale(0.0)), "recipe": RECIPE.model_copy(update={"weight_decay": 0.0})},
    ),
    "uphill": ("optimizer-arithmetic", {"clipped": set_groups(maximize=True)}),
    "moments are lost": ("optimizer-arithmetic", {"stepped": forget_moments}),
    "decay in the gradient": ("optimizer-arithmetic", {"prepare": in_between(coupled_decay)}),
    "one gradient is dropped": ("optimizer-arithmetic", {"prepare": in_between(no_gradient_of_one)}),
    "not clipped": ("gradient-clip", {"clipped": not_clipped}),
    "clipped twice": ("gradient-clip", {"clipped": clipped_again}),
    "clipped tensor by tensor": ("gradient-clip", {"clipped": clipped_one_by_one}),
    "the norm that is logged is another one": ("gradient-clip", {"norm": 0.5}),
    "frozen weights move": ("frozen-weights-moved", {"stepped": frozen_moves}),
    "a frozen bias moves": ("frozen-weights-moved", {"stepped": frozen_bias_moves}),
    "the reference moves": ("frozen-weights-moved", {"stepped": reference_moves}),
}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_broken_update_is_told_of(name: str) -> None:
    code, changes = MUTANTS[name]
    bench = Bench(changes.get("recipe", RECIPE))
    bench.watch()
    for place, change in changes.items():
        setattr(bench, place, change)
    assert code in bench.codes()


def test_every_identity_is_broken_in_three_ways() -> None:
    codes = [code for code, _ in MUTANTS.values()]
    assert {code for code in codes if codes.count(code) < 3} == set()


def test_a_skipped_update_does_not_step() -> None:
    bench = Bench()
    bench.skips = True
    assert "update-count" in bench.codes()


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("uphill", "climbs"),
        ("moments are lost", "they were lost"),
        ("decay in the gradient", "Adam with L2"),
        ("the optimizer steps twice an update", "stepped 2 times"),
        ("the schedule steps twice an update", "the trainer counts"),
        ("the rate that is logged is another one", "0.5 times as large"),
    ],
)
def test_the_cause_is_named(name: str, cause: str) -> None:
    code, changes = MUTANTS[name]
    bench = Bench()
    bench.watch()
    for place, change in changes.items():
        setattr(bench, place, change)
    told = [violation.text for violation in bench.run() if violation.code == code]
    assert any(cause in text for text in told), told
