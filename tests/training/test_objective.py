from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from levelhead.objective.controllers import Band, Fixed, Lagrangian
from levelhead.objective.terms import scalar_loss
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.training.advantages import group_weights
from levelhead.training.batch import Sample
from levelhead.training.objective import Objective
from levelhead.training.passes import make_merger
from levelhead.training.plan import Plan
from levelhead.training.update_metrics import UpdateMetrics, summarise
from small_run import alone, codec_ids, spread_out, tiny_policy

WEIGHTS = {"one": 3.0, "two": 1.0}


@pytest.fixture(scope="module")
def policy() -> Policy:
    policy = tiny_policy()
    policy.keep_reference(trained=False)
    with torch.no_grad():
        for index, parameter in enumerate(policy.parameters):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))
    return policy


def samples(policy: Policy) -> list[Sample]:
    """Four groups of three, two a task; the last one has no contrast; one rollout has two turns, one is truncated."""
    ids = codec_ids()
    result: list[Sample] = []
    for g, task in enumerate(("one", "two", "one", "two")):
        prompt = ids[12 * g : 12 * g + 6 + g]
        for k in range(3):
            completion = ids[50 + 7 * k + g : 53 + 9 * k + g]
            with torch.no_grad():
                logp = alone(policy, prompt, completion)[0]
            drift = 0.3 * torch.sin(torch.arange(len(completion)) + g + k)
            live = g != 3
            result.append(
                Sample(
                    TokenSequence(prompt, completion, g),
                    task,
                    (k - 1.0) * (1 + g) if live else 0.0,
                    tuple((logp + drift).tolist()),
                    0.5 if (g, k) == (2, 1) else 1.0,
                    live,
                    (g, k) == (0, 2),
                    tuple((logp + 0.9 * drift).tolist()),
                )
            )
    return result


def grpo(**changes: Any) -> Grpo:
    return Grpo.model_validate({"group_size": 3, "batch_size": 12, **changes})


def make(recipe: Grpo, kl: Mapping[str, float | None] | None = None) -> Objective:
    return Objective(recipe, WEIGHTS, kl or dict.fromkeys(WEIGHTS))


def update(
    policy: Policy, samples: Sequence[Sample], recipe: Grpo, tokens: int = 10_000, *, at_old_policy: bool = False
) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Metrics and gradient of one optimizer step."""
    objective, merger, metrics = make(recipe), make_merger(policy, recipe, 0), UpdateMetrics()
    plan = objective.plan(samples, temperature=1.0, at_old_policy=at_old_policy, seed=0)
    for task, members in plan.samples.items():
        for micro in policy.pack([s.sequence for s in members], tokens):
            merger.add(objective.terms(policy, micro, task, plan, metrics))
    merger.finish()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters]
    return summarise(metrics.read(), plan.shares), grads


def same(grads: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    scale = max(float(g.abs().max()) for g in wanted)
    assert scale > 0
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("kind", ["ppo_clip", "gspo", "cispo"])
def test_splitting_an_update_into_micro_batches_changes_nothing(policy: Policy, kind: str, aggregation: str) -> None:
    recipe = grpo(
        loss={"kind": kind, "aggregation": aggregation, "importance": "token_truncate"},
        kl={"coef": 0.1},
        entropy={"coef": 0.05},
    )
    batch = samples(policy)
    values, grads = update(policy, batch, recipe)
    small_values, small_grads = update(policy, batch, recipe, 30)
    same(small_grads, grads)
    assert small_values.keys() == values.keys()
    for name, value in values.items():
        assert small_values[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_groups_without_contrast_are_not_computed_unless_kl_or_entropy_needs_them(policy: Policy) -> None:
    batch = samples(policy)

    def computed(recipe: Grpo, kl: Mapping[str, float | None] | None = None) -> int:
        plan = make(recipe, kl).plan(batch, temperature=1.0, at_old_policy=True, seed=0)
        return sum(len(members) for members in plan.samples.values())

    assert computed(grpo()) == 9
    assert computed(grpo(kl={"coef": 0.1})) == 12
    assert computed(grpo(), {"one": 0.1, "two": 0.0}) == 9
    assert computed(grpo(), {"one": 0.0, "two": 0.1}) == 12
    assert computed(grpo(entropy={"coef": 0.1})) == 12
    assert computed(grpo(kl={"coef": 0.1, "where": "reward", "estimator": "k1"})) == 9


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_leaving_groups_without_contrast_out_changes_no_gradient(policy: Policy, aggregation: str) -> None:
    recipe = grpo(loss={"aggregation": aggregation})
    batch = samples(policy)
    _, grads = update(policy, batch, recipe)
    _, paid_for = update(policy, [replace(s, has_signal=True) for s in batch], recipe)
    same(grads, paid_for)


@pytest.mark.parametrize("merge", [{"kind": "sum", "monitor_every": 1}, {"kind": "mean", "scale": "sum"}])
@pytest.mark.parametrize("memory", ["full", "low"])
def test_gradients_of_tasks_merged_by_a_sum_are_the_gradient_of_the_single_loss(
    policy: Policy, merge: dict[str, Any], memory: str
) -> None:
    shared: dict[str, Any] = {"kl": {"coef": 0.1}, "entropy": {"coef": 0.05}}
    batch = samples(policy)
    values, single = update(policy, batch, grpo(**shared))
    apart_values, apart = update(policy, batch, grpo(**shared, merge={**merge, "memory": memory}), 40)
    same(apart, single)
    assert apart_values["loss"] == pytest.approx(values["loss"], rel=1e-4)


def test_later_epochs_ask_the_reference_nothing_and_have_the_same_gradient(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = grpo(kl={"coef": 0.1}, epochs=2)
    batch, asked = samples(policy), []
    real = policy.reference_logp
    monkeypatch.setattr(policy, "reference_logp", lambda micro, t=1.0: asked.append(1) or real(micro, t))
    objective, merger = make(recipe), make_merger(policy, recipe, 0)
    metrics = UpdateMetrics()
    epochs = []
    for tokens, order in ((10_000, batch), (40, batch[::-1])):
        plan = objective.plan(order, temperature=1.0, at_old_policy=False, seed=0)
        merger.start()
        for task, members in plan.samples.items():
            for micro in policy.pack([s.sequence for s in members], tokens):
                merger.add(objective.terms(policy, micro, task, plan, metrics))
        merger.finish()
        epochs.append([p.grad.clone() for p in policy.parameters if p.grad is not None])
    assert len(asked) == 2  # once a task, in the first epoch
    same(epochs[1], epochs[0])
    objective.references.clear()
    update(policy, batch, recipe)
    assert len(asked) == 4


def test_the_loss_of_an_update_is_its_formula(policy: Policy) -> None:
    """PPO's surrogate, k3 and entropy of each task from plain forward passes, by hand."""
    recipe = grpo(kl={"coef": 0.1}, entropy={"coef": 0.05})
    batch = samples(policy)
    loss = torch.zeros(())
    for task, share in (("one", 0.75), ("two", 0.25)):
        surrogate = kl = entropy = torch.zeros(())
        tokens = sum(s.weight * len(s.logprobs) for s in batch if s.task == task)
        for s in (s for s in batch if s.task == task):
            logp, h = alone(policy, s.sequence.context_ids, s.sequence.completion_ids)
            ratio = (logp - torch.tensor(s.logprobs)).exp()
            surrogate = (
                surrogate + s.weight * torch.minimum(ratio * s.advantage, ratio.clamp(0.8, 1.2) * s.advantage).sum()
            )
            micro = policy.pack([s.sequence], 1000)[0]
            gap = policy.reference_logp(micro) - logp
            kl = kl + s.weight * (gap.exp() - 1 - gap).sum()
            entropy = entropy + s.weight * h.sum()
        loss = loss + share * (-surrogate + 0.1 * kl - 0.05 * entropy) / tokens
    wanted = torch.autograd.grad(loss, policy.parameters)
    values, grads = update(policy, batch, recipe)
    assert values["loss"] == pytest.approx(float(loss), rel=1e-4)
    same(grads, wanted)


def test_only_completion_tokens_are_targets(policy: Policy) -> None:
    batch = samples(policy)
    for micro in policy.pack([s.sequence for s in batch], 60):
        wanted = [t for i in micro.indices for t in batch[i].sequence.completion_ids]
        assert micro.targets.tolist() == wanted


def test_masked_truncated_completions_teach_as_if_they_were_not_there(policy: Policy) -> None:
    batch = samples(policy)
    _, masked = update(policy, batch, grpo(mask_truncated=True))
    _, gone = update(policy, [s for s in batch if not s.truncated], grpo())
    _, whole = update(policy, batch, grpo())
    same(masked, gone)
    with pytest.raises(AssertionError):
        same(masked, whole)


def test_on_policy_the_ratio_is_one_and_nothing_is_clipped(policy: Policy) -> None:
    values, _ = update(policy, samples(policy), grpo(), at_old_policy=True)
    assert values["ratio/mean"] == 1.0
    assert values["clip_ratio/region_mean"] == 0.0
    assert update(policy, samples(policy), grpo())[0]["clip_ratio/region_mean"] > 0


def test_an_advantage_a_token_equal_to_the_rollouts_changes_nothing(policy: Policy) -> None:
    batch = samples(policy)
    spelled = [replace(s, advantages=(s.advantage,) * len(s.logprobs)) for s in batch]
    same(update(policy, spelled, grpo())[1], update(policy, batch, grpo())[1])


def test_tokens_that_are_not_kept_teach_nothing(policy: Policy) -> None:
    batch = samples(policy)
    all_kept = [replace(s, keep=(1.0,) * len(s.logprobs)) for s in batch]
    same(update(policy, all_kept, grpo())[1], update(policy, batch, grpo())[1])
    none_kept = [replace(s, keep=(0.0,) * len(s.logprobs)) for s in batch]
    assert all(float(g.abs().max()) == 0 for g in update(policy, none_kept, grpo())[1])


def test_the_correction_for_the_sampler_is_the_truncated_ratio_of_old_to_behaviour(policy: Policy) -> None:
    batch = samples(policy)
    recipe = grpo(loss={"importance": "token_truncate", "importance_high": 1.01})
    spelled = []
    for s in batch:
        ratio = (torch.tensor(s.logprobs) - torch.tensor(s.behaviour)).exp().clamp(max=1.01)
        spelled.append(replace(s, advantages=tuple((s.advantage * ratio).tolist())))
    corrected = update(policy, batch, recipe)[1]
    same(corrected, update(policy, spelled, grpo())[1])
    with pytest.raises(AssertionError):
        same(corrected, update(policy, batch, grpo())[1])


def test_scored_old_log_probabilities_take_the_place_of_the_samplers(policy: Policy) -> None:
    batch = samples(policy)
    moved = [replace(s, logprobs=tuple(x - 0.5 for x in s.logprobs), old=s.logprobs) for s in batch]
    same(update(policy, moved, grpo())[1], update(policy, batch, grpo())[1])


def test_clip_cov_draws_from_its_own_seed(policy: Policy) -> None:
    loss = {"kind": "clip_cov", "cov_fraction": 0.3, "cov_low": -100.0, "cov_high": 100.0}
    first, second = (update(policy, samples(policy), grpo(loss=loss))[1] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("kl", "needed"),
    [
        ({}, False),
        ({"coef": 0.1}, True),
        ({"controller": {"kind": "lagrangian", "target": 0.1}}, True),
        ({"coef": 0.1, "controller": {"kind": "band", "low": 0.01, "high": 0.1}}, True),
    ],
)
def test_a_reference_is_kept_where_a_kl_penalty_is_or_can_come_to_be(kl: dict[str, Any], needed: bool) -> None:
    assert make(grpo(kl=kl)).coefficients.needs_reference is needed
    assert make(grpo(kl=kl), {"one": 0.0, "two": 0.0}).coefficients.needs_reference is (
        "controller" in kl and "coef" not in kl
    )


def test_a_lagrangian_strengthens_the_kl_penalty_from_nothing(policy: Policy) -> None:
    objective = make(grpo(kl={"controller": {"kind": "lagrangian", "target": 0.0, "eta": 1.0}}))
    metrics = UpdateMetrics()
    plan = objective.plan(samples(policy), temperature=1.0, at_old_policy=True, seed=0)
    for task, members in plan.samples.items():
        for micro in policy.pack([s.sequence for s in members], 10_000):
            objective.terms(policy, micro, task, plan, metrics)
    objective.coefficients.update(summarise(metrics.read(), plan.shares))
    assert all(coef > 0 for coef in objective.coefficients.kl.values())
    again = make(objective.config)
    again.coefficients.load_state_dict(objective.coefficients.state_dict())
    assert again.coefficients.kl == objective.coefficients.kl


def test_tasks_with_controllers_of_their_own_get_coefficients_of_their_own() -> None:
    recipe = grpo(kl={"coef": 0.1, "controller": {"kind": "lagrangian", "target": 0.5, "eta": 1.0}})
    band = Band(low=0.01, high=0.02, factor=2.0)
    tight = Lagrangian(target=0.1, eta=1.0)
    weights = {"one": 1.0, "two": 1.0, "three": 1.0, "four": 1.0}
    kl = {"one": None, "two": 0.4, "three": None, "four": 0.2}

    def made() -> Objective:
        return Objective(recipe, weights, kl, {"two": band, "three": tight, "four": Fixed()})

    objective = made()
    objective.coefficients.update({f"kl/{task}": 0.3 for task in weights})
    assert objective.coefficients.kl == pytest.approx({"one": 0.0, "two": 0.8, "three": 0.3, "four": 0.2})
    objective.coefficients.update({f"kl/{task}": 0.6 for task in weights})
    assert objective.coefficients.kl == pytest.approx({"one": 0.1, "two": 1.6, "three": 0.8, "four": 0.2})
    again = made()
    again.coefficients.load_state_dict(json.loads(json.dumps(objective.coefficients.state_dict())))
    assert again.coefficients.kl == objective.coefficients.kl


def test_a_controller_that_does_not_fit_names_its_task() -> None:
    wrong = Lagrangian(target=0.1, coef_max=0.05)
    with pytest.raises(ValueError, match=r"the KL controller of task 'two': .*coef_max"):
        Objective(grpo(), WEIGHTS, {"one": None, "two": 0.1}, {"two": wrong})


@pytest.mark.parametrize("tokens", [10_000, 40])
def test_the_largest_ratio_is_that_of_any_token_that_teaches_whatever_the_micro_batches(
    policy: Policy, tokens: int
) -> None:
    batch = samples(policy)
    objective = make(grpo(loss={"importance": "token_truncate", "importance_high": 1.2}))
    metrics = UpdateMetrics()
    plan = objective.plan(batch, temperature=1.0, at_old_policy=False, seed=0)
    ratios: list[float] = []
    for task, members in plan.samples.items():
        for micro in policy.pack([s.sequence for s in members], tokens):
            objective.terms(policy, micro, task, plan, metrics)
            logp = spread_out(micro, policy.score(micro, 1.0).logp.detach())
            pairs = ((members[i], row) for i, row in logp.items() if members[i].has_signal)
            ratios += [float(r) for s, row in pairs for r in (row - torch.tensor(s.logprobs)).exp()]
    values = summarise(metrics.read(), plan.shares)
    assert values["ratio/max"] == pytest.approx(max(ratios), rel=1e-5)
    assert values["ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
    assert values["ratio/max"] > 1.2 >= values["sampling/importance_sampling_ratio/max"] > 1.0
    assert values["sampling/importance_sampling_ratio/min"] < 1.0


def test_what_is_not_finite_moves_no_coefficient() -> None:
    objective = make(grpo(kl={"coef": 0.1, "controller": {"kind": "band", "low": 0.1, "high": 0.2}}))
    before = objective.coefficients.state_dict()
    objective.coefficients.update({"kl/one": float("nan"), "kl/two": float("inf"), "entropy": float("nan")})
    assert objective.coefficients.state_dict() == before


def test_a_log_probability_that_is_not_finite_is_no_loss(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = make(grpo())
    plan: Plan = objective.plan(samples(policy), temperature=1.0, at_old_policy=True, seed=0)
    micro = policy.pack([s.sequence for s in plan.samples["one"]], 10_000)[0]
    real = policy.score(micro)
    monkeypatch.setattr(policy, "score", lambda *_: replace(real, logp=real.logp * float("nan")))
    metrics = UpdateMetrics()
    objective.terms(policy, micro, "one", plan, metrics)
    assert metrics.read() == {}
    assert metrics.broken


def test_the_loss_reported_is_the_loss_descended(policy: Policy) -> None:
    objective = make(grpo(kl={"coef": 0.1}))
    metrics = UpdateMetrics()
    plan = objective.plan(samples(policy), temperature=1.0, at_old_policy=True, seed=0)
    total = 0.0
    for task, members in plan.samples.items():
        for micro in policy.pack([s.sequence for s in members], 30):
            total += float(scalar_loss(objective.terms(policy, micro, task, plan, metrics)).detach())
    assert summarise(metrics.read(), plan.shares)["loss"] == pytest.approx(total)


def test_balanced_strata_add_up_their_gradients_by_their_weights(policy: Policy) -> None:
    strata = ["a", "a", "b", "a"]  # the last group has no contrast
    weights = group_weights(strata)
    batch = [replace(s, task="one", centred_reward=0.0) for s in samples(policy)]
    balanced = [replace(s, balance=weights[s.sequence.prefix_group]) for s in batch]

    def gradient(members: Sequence[Sample], stratum: str | None = None, **recipe: Any) -> list[torch.Tensor]:
        seen = [
            replace(
                s,
                has_signal=s.has_signal
                and strata[s.sequence.prefix_group] == (stratum or strata[s.sequence.prefix_group]),
            )
            for s in members
        ]
        return update(policy, seen, grpo(**recipe))[1]

    a, b = gradient(batch, "a"), gradient(batch, "b")
    assert weights == pytest.approx([2 / 3, 2 / 3, 2.0, 2 / 3])
    same(gradient(balanced), [2 / 3 * x + 2.0 * y for x, y in zip(a, b, strict=True)])
    same(gradient(batch), [x + y for x, y in zip(a, b, strict=True)])
    # The leash and the bonus keep their weights.
    others = {"kl": {"coef": 0.1}, "entropy": {"coef": 0.05}}
    plain = [x - y for x, y in zip(gradient(batch, **others), gradient(batch), strict=True)]
    same([x - y for x, y in zip(gradient(balanced, **others), gradient(balanced), strict=True)], plain)


def test_a_balance_of_one_changes_no_bit(policy: Policy) -> None:
    batch = samples(policy)
    recipe = grpo(loss={"importance": "token_truncate"}, entropy={"coef": 0.05})
    weighed = [replace(s, balance=1.0) for s in batch]
    assert all(
        torch.equal(x, y)
        for x, y in zip(update(policy, batch, recipe)[1], update(policy, weighed, recipe)[1], strict=True)
    )
