"""The arithmetic of the objective is proved: sound recipes pass to 1e-5, every wrong factor is stopped and named."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

import levelhead.objective.aggregation.merger as merger_module
import levelhead.objective.losses
import levelhead.training.advantages as credit_module
import levelhead.training.batch as batch_module
import levelhead.training.objective as objective_module
import levelhead.training.terms as terms_module
from faults.known import inject
from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.terms import Term
from levelhead.policy.policy import Policy, TokenStats
from levelhead.recipe import Recipe
from levelhead.recipe.objective import Advantage, Loss
from levelhead.records import Rollout
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.batch import Sample
from levelhead.training.coefficients import Coefficients, WeightsInForce
from levelhead.training.objective import Objective
from levelhead.training.optim import Updater
from levelhead.training.prepare import Setup
from oracle.result import Check
from oracle.run import preflight
from oracle.textbook import estimators
from preflight.test_recipes import several_turns
from preflight_setup import ROWS, recipe_of, setup_of


@pytest.fixture(scope="module")
def setup() -> Setup:
    return setup_of()


def checks(setup: Setup, *settings: str, recipe: Recipe | None = None) -> dict[str, Check]:
    report = preflight(replace(setup, recipe=recipe or recipe_of(*settings)), families=["objective"])
    return {check.name: check for check in report.checks}


Patch = Callable[[pytest.MonkeyPatch], None]


def _compute(change: Callable[..., Any]) -> Patch:
    """Another estimator behind the trainer's call."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = credit_module.advantages.compute

        def compute(name: str, rewards_gk: Any, **options: Any) -> Any:
            return change(real, name, rewards_gk, **options)

        monkeypatch.setattr(credit_module.advantages, "compute", compute)

    return patch


def _batch_mean(real: Any, name: str, rewards_gk: Any, **options: Any) -> Any:
    made = real(name, rewards_gk, **options)
    std_g1 = np.std(rewards_gk, axis=1, keepdims=True, ddof=1) + 1e-4
    values_gk = np.where(made.has_signal_g[:, None], (rewards_gk - rewards_gk.mean()) / std_g1, 0.0)
    return replace(made, values_gk=values_gk)


def _other(kind: str) -> Patch:
    return _compute(lambda real, _name, rewards, **options: real(kind, rewards, **options))


def _groups_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = AdvantageEstimator._estimate

    def estimate(self: AdvantageEstimator, task: str, *rest: Any) -> Any:
        made = real(self, task, *rest)
        return [made[2], made[1], made[0], *made[3:]] if task == "echo" else made

    monkeypatch.setattr(AdvantageEstimator, "_estimate", estimate)


def _loss_option(**changes: Any) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = levelhead.objective.losses.policy_loss

        def loss(*args: Any, **options: Any) -> Any:
            return real(*args, **{**options, **changes})

        monkeypatch.setattr(levelhead.objective.losses, "policy_loss", loss)

    return patch


def _aggregate(change: Callable[..., Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = levelhead.objective.losses.aggregate
        monkeypatch.setattr(
            levelhead.objective.losses, "aggregate", lambda *args, **options: change(real, *args, **options)
        )

    return patch


def _of_micro_batch(real: Any, mode: str, values: Any, mask: Any, **options: Any) -> Any:
    return real(mode, values, mask, **{**options, "denominator": None})


def _of_padded_width(real: Any, mode: str, values: Any, mask: Any, **options: Any) -> Any:
    lengths = (mask != 0).sum(-1, keepdim=True)
    return real(mode, values * lengths / mask.shape[1], mask, **options)


def _long_answers_weigh_more(real: Any, mode: str, values: Any, mask: Any, **options: Any) -> Any:
    lengths = (mask != 0).sum(-1, keepdim=True)
    return real(mode, values * (1 + lengths / 10), mask, **options)


def _old(of: Callable[[Sample], Any]) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(Sample, "old_logprobs", property(of))


def _kl(name: str) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = terms_module.kl_estimators.estimate
        monkeypatch.setattr(
            terms_module.kl_estimators, "estimate", lambda _name, *args, **options: real(name, *args, **options)
        )

    return patch


def _kl_sign_in_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    real = credit_module._charge
    monkeypatch.setattr(credit_module, "_charge", lambda *args: -real(*args))


def _terms(change: Callable[[Term, Any], Term]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Objective.terms

        def terms(self: Objective, policy: Policy, micro: Any, task: str, plan: Any, metrics: Any) -> list[Term]:
            return [change(term, micro) for term in real(self, policy, micro, task, plan, metrics)]

        monkeypatch.setattr(Objective, "terms", terms)

    return patch


def _entropy_over_padding(term: Term, micro: Any) -> Term:
    return replace(term, value=term.value * micro.mask().mean()) if term.name == "entropy" else term


def _weights_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Objective.__init__

    def init(self: Objective, recipe: Any, weights: Any, *rest: Any, **options: Any) -> None:
        real(self, recipe, dict(zip(weights, reversed(weights.values()), strict=True)), *rest, **options)

    monkeypatch.setattr(Objective, "__init__", init)


def _accumulation_divides_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    import levelhead.training.grpo as grpo_module

    real = grpo_module.accumulate

    def accumulate(policy: Any, objective: Any, plan: Any, tokens: int, merger: Any, *rest: Any) -> None:
        count = sum(len(policy.pack([s.sequence for s in members], tokens)) for members in plan.samples.values())
        add = merger.add
        merger.add = lambda terms: add([replace(term, weight=term.weight / count) for term in terms])
        try:
            real(policy, objective, plan, tokens, merger, *rest)
        finally:
            del merger.add

    monkeypatch.setattr(grpo_module, "accumulate", accumulate)


def _score(change: Callable[[TokenStats, float], TokenStats], temperature: float | None = None) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Policy.score

        def score(self: Policy, batch: Any, warmth: float = 1.0) -> TokenStats:
            return change(real(self, batch, warmth if temperature is None else temperature), warmth)

        monkeypatch.setattr(Policy, "score", score)

    return patch


def _slope_without_temperature(stats: TokenStats, warmth: float) -> TokenStats:
    return replace(stats, logp=stats.logp * warmth + (1 - warmth) * stats.logp.detach())


def _always_on_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Objective.plan

    def plan(self: Objective, samples: Any, **options: Any) -> Any:
        return real(self, samples, **{**options, "at_old_policy": True})

    monkeypatch.setattr(Objective, "plan", plan)


def _old_of_the_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    real, real_batch = objective_module.build_terms, objective_module.make_term_batch
    last: dict[Any, Any] = {}
    rows_of: dict[int, Any] = {}

    def term_batch(samples: Any, *args: Any) -> Any:
        batch = real_batch(samples, *args)
        rows_of[id(batch)] = (batch, samples)
        return batch

    def terms(batch: Any, config: Any) -> Any:
        samples, logp = rows_of[id(batch)][1], batch.logp_nt
        rows = [last.get(s.sequence) for s in samples]
        stale = batch.old_logp_nt.clone()
        for i, (sample, row) in enumerate(zip(samples, rows, strict=True)):
            if row is not None and row[0] is sample:
                stale[i, : len(row[1])] = row[1]
            last[sample.sequence] = (sample, logp[i, : len(sample.logprobs)].detach())
        return real(replace(batch, old_logp_nt=stale), config)

    monkeypatch.setattr(objective_module, "make_term_batch", term_batch)
    monkeypatch.setattr(objective_module, "build_terms", terms)


def _never_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: GradientMerger) -> None:
        if not self._started:
            self._tasks, self._started = {}, True

    monkeypatch.setattr(GradientMerger, "start", start)


def _merge_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(_kind: str, products: Any, **_options: Any) -> Any:
        return torch.ones(len(products), dtype=products.dtype) / 2

    monkeypatch.setattr(merger_module, "weights", weights)


def _never_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rollout, "truncated", property(lambda _self: False))


def _unshaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdvantageEstimator, "shape", lambda _self, _task, groups: np.array([g.rewards for g in groups]))


def _importance_upside_down(monkeypatch: pytest.MonkeyPatch) -> None:
    real = levelhead.objective.losses.importance_weights
    monkeypatch.setattr(
        levelhead.objective.losses,
        "importance_weights",
        lambda mode, old, behaviour, mask, **options: real(mode, behaviour, old, mask, **options),
    )


def _controller_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coefficients, "update", lambda _self, _values: None)


def _half_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    import levelhead.training.grpo as grpo_module

    real = grpo_module.deal_minibatches

    def minibatches(*args: Any) -> list[list[Sample]]:
        dealt = real(*args)
        return [dealt[0], dealt[0], *dealt[2:]]

    monkeypatch.setattr(grpo_module, "deal_minibatches", minibatches)


def _clipped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updater.prepare

    def prepare(self: Updater) -> float:
        norm = real(self)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad *= 0.5
        return norm

    monkeypatch.setattr(Updater, "prepare", prepare)


@dataclass(frozen=True)
class Mutant:
    """A fault, of the lab where it is a name, and the words that must name it."""

    name: str
    patch: Patch | str
    says: str
    settings: tuple[str, ...] = ()
    check: str = "objective/gradient"


KL = "grpo.kl.coef=0.05"
COLD = "grpo.sampling.temperature=0.8"
MUTANTS = [
    Mutant("mean over the batch", _compute(_batch_mean), "mean is that of the whole batch"),
    Mutant("deviation over the batch", _other("batch"), "standard deviation is that of the whole batch"),
    Mutant("no division by the deviation", _other("dr_grpo"), "not divided by a standard deviation"),
    Mutant("groups exchanged", _groups_swapped, "advantages of groups 1 and 5 are exchanged"),
    Mutant(
        "population deviation",
        _compute(lambda real, name, r, **o: real(name, r, **{**o, "ddof": 0})),
        "deviation has ddof 0, not 1",
    ),
    Mutant("token mean of each micro-batch", _aggregate(_of_micro_batch), "of each micro-batch instead of the whole"),
    Mutant(
        "length normalised by the padded width",
        _aggregate(_of_padded_width),
        "padded width of their micro-batch",
        ("grpo.loss.aggregation=sequence_mean",),
    ),
    Mutant("long answers weigh more", _aggregate(_long_answers_weigh_more), "tokens of long answers weigh 1.83 times"),
    Mutant("no upper clip", _loss_option(clip_high=1e6), "clip's upper side is missing", (), "objective/off-policy"),
    Mutant("no lower clip", _loss_option(clip_low=1e6), "clip's lower side is missing", (), "objective/off-policy"),
    Mutant("old of the draw", _old(lambda s: s.behaviour), "distribution that was drawn", (), "objective/off-policy"),
    Mutant("old is new", _always_on_policy, "ratio is always 1", (), "objective/off-policy"),
    Mutant("old of the last update", _old_of_the_last_update, "of the update before", (), "objective/off-policy"),
    Mutant("k1 for k3", _kl("k1"), "KL is that of estimator k1", (KL,)),
    Mutant(
        "KL paid to the reward",
        _kl_sign_in_reward,
        "KL enters the reward with the opposite sign",
        (KL, "grpo.kl.where=reward", "grpo.kl.estimator=k1"),
    ),
    Mutant(
        "KL doubled",
        _terms(lambda t, _m: replace(t, value=t.value * 2) if t.name == "kl" else t),
        "KL enters the loss with 2 times",
        (KL,),
    ),
    Mutant(
        "KL times 1.7",
        _terms(lambda t, _m: replace(t, value=t.value * 1.7) if t.name == "kl" else t),
        "the KL enters with 1.7 times",
        (KL,),
    ),
    Mutant(
        "KL controller asleep",
        _controller_asleep,
        "controller has no effect",
        (KL, "grpo.kl.controller={kind: lagrangian, target: 0.01, eta: 1.0}"),
        "objective/off-policy",
    ),
    Mutant(
        "entropy over padding",
        _terms(_entropy_over_padding),
        "entropy bonus is a mean over padding",
        ("grpo.entropy.coef=0.1",),
    ),
    Mutant(
        "entropy penalised",
        "entropy-penalised",
        "entropy bonus.* -1 times",
        ("grpo.entropy.coef=0.1",),
    ),
    Mutant(
        "task weights exchanged",
        _weights_exchanged,
        "weights of tasks echo and math are exchanged",
        ("tasks.0.weight=3",),
    ),
    Mutant("accumulation divides twice", _accumulation_divides_twice, "divided by the number of micro-batches"),
    Mutant(
        "temperature missing",
        _score(lambda s, _t: s, 1.0),
        "at temperature 1, and the recipe samples at 0.8",
        (COLD,),
        "objective/weights",
    ),
    Mutant(
        "slope without temperature",
        _score(_slope_without_temperature),
        r"0.8 times what it should be \(0.8: the temperature\)",
        (COLD,),
        "objective/weights",
    ),
    Mutant("gradient never cleared", _never_cleared, "was not cleared", (), "objective/weights"),
    Mutant(
        "aggregator forgotten",
        _merge_forgotten,
        "the reward of echo enters 1 times and should",
        ("grpo.merge.kind=cagrad",),
        "objective/weights",
    ),
    Mutant("clipped once more", _clipped_twice, "clipping scales the gradient", (), "objective/weights"),
    Mutant(
        "truncated answers learnt from",
        _never_truncated,
        "truncated answers are learnt from",
        ("grpo.mask_truncated=true",),
    ),
    Mutant(
        "shaping left out",
        _unshaped,
        "shaping of task echo has no effect",
        ("tasks.0.shaping.length={kind: overlong, cache: 20}",),
    ),
    Mutant(
        "importance upside down",
        _importance_upside_down,
        "wrong way up",
        ("grpo.loss.importance=token_truncate",),
    ),
    Mutant("advantages rolled", "advantages-rolled", "advantages"),
    Mutant("advantages negated", "advantages-negated", "advantages have the opposite sign"),
    Mutant(
        "task weights that stay",
        lambda m: m.setattr(WeightsInForce, "update", lambda self, values: None),
        "weights stay where they were: grpo.task_weights has no effect",
        ("grpo.task_weights={kind: constraint, least: {math: 0.5}, eta: 2}",),
        "objective/off-policy",
    ),
    Mutant("a mini-batch twice", _half_of_the_groups, "in no mini-batch of pass 1", (), "objective/off-policy"),
]


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.ExitStack() as stack:
        if isinstance(mutant.patch, str):
            stack.enter_context(inject(mutant.patch))
        else:
            mutant.patch(monkeypatch)
        yield


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_wrong_arithmetic_is_stopped_and_named(setup: Setup, mutant: Mutant) -> None:
    with broken(mutant):
        made = checks(setup, *mutant.settings)
    check = made[mutant.check]
    assert check.status == "fail", made
    assert re.search(mutant.says, check.message), check.message


def test_turns_that_count_as_rollouts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = several_turns()
    assert {c.status for c in checks(rooms, recipe=rooms.recipe).values()} == {"pass"}
    real = batch_module.Sample
    monkeypatch.setattr(batch_module, "Sample", lambda **fields: replace(real(**fields), weight=1.0))
    check = checks(rooms, recipe=rooms.recipe)["objective/gradient"]
    assert "every turn counts as a whole rollout" in check.message


TURNWISE = ("return_to_go", "loo_gae", "mt_grpo", "gigpo")


@pytest.mark.parametrize("kind", [*TURNWISE, "grpo"])
@pytest.mark.parametrize(
    "settings",
    [
        ("grpo.loss.turns=sum",),
        ("grpo.loss.turns=sum", "grpo.loss.aggregation=sequence_mean", "grpo.advantage.clip=0.7", KL),
        ("grpo.loss.aggregation=fixed_length", "grpo.entropy.coef=0.01"),
    ],
    ids=" ".join,
)
def test_credit_by_turn_reaches_every_token_of_its_turn(kind: str, settings: tuple[str, ...]) -> None:
    rooms = several_turns()
    made = checks(rooms, recipe=several_turns(f"grpo.advantage.kind={kind}", *settings).recipe)
    assert {check.status for check in made.values()} == {"pass"}, made


@pytest.mark.parametrize("baseline", ["turn", "episode"])
def test_baselines_of_turns_reach_every_token(baseline: str) -> None:
    rooms = several_turns()
    setting = f"grpo.advantage={{kind: loo_gae, trace: 0.6, discount: 0.9, baseline: {baseline}}}"
    made = checks(rooms, recipe=several_turns(setting).recipe)
    assert {check.status for check in made.values()} == {"pass"}, made


LOSSES = get_args(Loss.model_fields["kind"].annotation)
FREE = [loss for loss in LOSSES if loss not in ("gspo", "gmpo")]
"""Losses that take an advantage a token."""
KINDS = list(zip(get_args(Advantage.model_fields["kind"].annotation), itertools.cycle(FREE), strict=False))
SUBSETS = ("pass_at_k", "pkpo")
SOUND = [
    *[(f"grpo.advantage.kind={a}", f"grpo.loss.kind={b}", "grpo.advantage.k=3") for a, b in KINDS if a in SUBSETS],
    *[(f"grpo.advantage.kind={a}", f"grpo.loss.kind={b}") for a, b in KINDS if a not in SUBSETS],
    *[("grpo.loss.aggregation=sequence_mean", f"grpo.loss.kind={b}") for b in LOSSES],
    ("grpo.loss.kind=clip_cov", "grpo.loss.cov_fraction=0.1", "grpo.loss.cov_low=0.1", KL, "grpo.loss.dual_clip=2"),
    ("grpo.loss.kind=kl_cov", "grpo.loss.cov_fraction=0.1", KL, "grpo.advantage.kind=dr_grpo"),
    ("grpo.loss.aggregation=fixed_length", "grpo.loss.dual_clip=2", "grpo.advantage.clip=0.5", "grpo.advantage.ddof=0"),
    ("grpo.loss.importance=token_truncate", "grpo.loss.importance_low=0.5", "grpo.async=1"),
    ("grpo.loss.importance=sequence_mask", "grpo.loss.importance_low=0.5", "grpo.loss.kind=reinforce"),
    ("grpo.loss.importance=geometric_mask", "grpo.loss.importance_low=0.9", "grpo.loss.importance_high=1.1"),
    ("grpo.loss.top_entropy=0.3", "grpo.mask_truncated=true", "grpo.loss.clip_high=0.28", "grpo.loss.clip_low=0"),
    *[
        (KL, f"grpo.kl.estimator={e}", f"grpo.kl.gradient={g}")
        for e, g in (("k1", "k2"), ("k2", "plain"), ("k3", "importance"))
    ],
    (KL, "grpo.kl.where=reward", "grpo.kl.estimator=k1", "grpo.kl.controller={kind: lagrangian, target: 0.01}"),
    ("grpo.kl.where=reward", "grpo.kl.estimator=k1"),
    (KL, "grpo.kl.controller={kind: band, low: 0.001, high: 0.002}", "grpo.epochs=3", "tasks.0.kl=0.1"),
    ("grpo.entropy.coef=0.01", "grpo.entropy.controller={kind: entropy_target, target: 20}", "tasks.0.weight=3"),
    (KL, "grpo.sampling={temperature: 1.3, temperature_schedule: cosine, temperature_final: 0.5, max_new_tokens: 24}"),
    ("grpo.sampling.temperature=0", "grpo.group_size=2", "grpo.batch_size=4"),
    ("grpo.merge.monitor_every=1", "grpo.merge.switch_after=1", "grpo.merge.conflict_below=1"),
    ("grpo.task_weights={kind: constraint, least: {math: 0.5}, eta: 2, kp: 1, smooth: 0.5}", "tasks.0.weight=3"),
    ("grpo.task_weights={kind: inverse_loss, most: {echo: 2}}", "grpo.merge.kind=cagrad"),
    *[
        (KL, f"grpo.merge.kind={m}", "grpo.entropy.coef=0.01")
        for m in ("mean", "pcgrad", "upgrad", "mgda", "aligned_mtl", "nash_mtl")
    ],
    (KL, "grpo.merge.kind=cagrad", "grpo.merge.memory=low", "grpo.merge.scale=own", "model.lora.r=4"),
    ("tasks.0.shaping={length: {kind: overlong, cache: 8}, zscore: {decay: 0.5, tail: 0.2}, clip: [-1, 1]}",),
    ("tasks.0.shaping={length: {kind: per_token, coef: 0.3}, scale: 0.4}", "grpo.advantage.kind=rloo"),
    ("tasks.0.shaping={length: {kind: group_relative}}", "grpo.advantage.kind=opo"),
]


@pytest.mark.parametrize("settings", SOUND, ids=" ".join)
def test_sound_recipe_passes_to_the_last_digit(setup: Setup, settings: tuple[str, ...]) -> None:
    made = checks(setup, *settings)
    assert {check.status for check in made.values()} == {"pass"}, made
    assert made["objective/gradient"].evidence["micro_batches"] >= 3
    clips = made["objective/off-policy"].evidence
    if not any("loss.kind" in setting for setting in settings):
        assert min(clips["clipped_below"], clips["clipped_above"]) > 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_so_few_rows_that_a_prompt_stands_in_a_batch_twice_pass(count: int) -> None:
    tasks = "tasks=[{kind: function, name: echo, oracle: answer}]"
    made = checks(setup_of(tasks, rows=ROWS[:count]), tasks)
    assert {check.status for check in made.values()} == {"pass"}, made


@pytest.mark.parametrize(
    "settings", [("model.dtype=bfloat16", "model.lora.r=4"), ("model.dtype=bfloat16",)], ids=" ".join
)
def test_half_precision_hides_no_slope(settings: tuple[str, ...]) -> None:
    made = checks(setup_of(*settings, KL), *settings, KL)
    assert {check.status for check in made.values()} == {"pass"}, made


def test_strata_that_count_alike_pass() -> None:
    tasks = "tasks=[{kind: function, name: echo, oracle: answer}, {kind: fairness, items: 40, balance: true, kl: 0.1}]"
    rich = setup_of(tasks)
    made = checks(rich, tasks, "grpo.merge.kind=cagrad")
    assert {check.status for check in made.values()} == {"pass"}, made


def test_estimator_without_a_page_is_called_unproved(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {name: page for name, page in estimators.ESTIMATORS.items() if name != "rloo"}
    monkeypatch.setattr(estimators, "ESTIMATORS", pages)
    (check,) = checks(setup, "grpo.advantage.kind=rloo").values()
    assert check.status == "warn"
    assert "advantage.kind: rloo has no textbook" in check.message


def test_weights_and_reference_are_left_alone(setup: Setup) -> None:
    before = [p.detach().clone() for p in setup.policy.parameters]
    checks(setup, KL)
    assert all(torch.equal(a, b) for a, b in zip(before, setup.policy.parameters, strict=True))
    assert not setup.policy.keeps_reference
    assert all(p.grad is None for p in setup.policy.parameters)
    assert "score" not in vars(setup.policy)
