"""The audit: slopes that come true, shares that add up, and signs that cannot hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.audit import Auditor, SignError
from levelhead.objective.terms import EXPECTED_SENSES, Term
from levelhead.objective.updates import next_updates


class Policy(nn.Module):
    """Contexts with a softmax each; reward for the first symbol, a reference, two tasks."""

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.logits = nn.Parameter(torch.randn(6, 5, generator=rng, dtype=torch.float64).to(dtype))
        self.scale = nn.Parameter(torch.ones(5, dtype=dtype))
        self.reference = torch.randn(6, 5, generator=rng, dtype=torch.float64).to(dtype)
        self.reward = torch.rand(6, 5, generator=rng, dtype=torch.float64).to(dtype)

    def leaves(self) -> list[Tensor]:
        return [self.logits, self.scale]

    def terms(self, bonus: float = 0.3, beta: float = 0.1) -> list[Term]:
        logp = (self.logits * self.scale).log_softmax(-1)
        p = logp.exp()
        gain = (p * self.reward).sum(-1)
        return [
            Term("policy", gain[:3].mean(), "maximize", task="a"),
            Term("policy", gain[3:].mean(), "maximize", task="b"),
            Term("kl", (p * (logp - self.reference.log_softmax(-1))).sum(-1).mean(), "minimize", beta),
            Term("entropy", -(p * logp).sum(-1).mean(), "maximize", bonus),
        ]


OPTIMIZERS = {
    "sgd": lambda params: SGD(params, lr=1e-4),
    "momentum": lambda params: SGD(params, lr=1e-4, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "nesterov": lambda params: SGD(params, lr=1e-4, momentum=0.9, nesterov=True),
    "adam": lambda params: Adam(params, lr=1e-5, weight_decay=0.1),
    "adamw": lambda params: AdamW(params, lr=1e-5, weight_decay=0.5),
    "amsgrad": lambda params: AdamW(params, lr=1e-5, amsgrad=True),
}


def audited_step(policy: Policy, optimizer: Optimizer | None, kind: str = "sum", **terms: Any) -> Any:
    auditor, merger = Auditor(policy.leaves()), GradientMerger(policy.leaves(), kind)
    made = policy.terms(**terms)
    auditor.add(made)
    merger.add(made)
    merger.finish()
    return auditor.finish(optimizer)


def values(policy: Policy) -> dict[str, float]:
    return {term.label: term.value.item() for term in policy.terms()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_predicted_update_is_the_one_the_optimizer_makes(name):
    policy = Policy()
    optimizer = OPTIMIZERS[name](policy.leaves())
    for step in range(4):
        policy.zero_grad()
        (policy.terms()[0].value * (step + 1)).backward()
        predicted = list(next_updates(policy.leaves(), optimizer))
        before = [param.detach().clone() for param in policy.leaves()]
        parts = [
            update.scale * param.grad + sum(update.rest.values())
            for update, param in zip(predicted, policy.leaves(), strict=True)
        ]
        optimizer.step()
        for part, param, old in zip(parts, policy.leaves(), before, strict=True):
            torch.testing.assert_close(part, param.detach() - old, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slopes_are_what_the_step_then_does(name):
    policy = Policy()
    optimizer = OPTIMIZERS[name](policy.leaves())
    for _ in range(3):
        report = audited_step(policy, optimizer)
        before = values(policy)
        optimizer.step()
        after = values(policy)
        for label, value in before.items():
            change = after[label] - value
            assert report.metrics[f"audit/{label}/slope"] == pytest.approx(change, rel=0.02, abs=1e-9)


def test_shares_add_up_to_the_slope_and_name_their_source():
    policy = Policy()
    optimizer = OPTIMIZERS["adamw"](policy.leaves())
    audited_step(policy, optimizer)
    optimizer.step()
    metrics = audited_step(policy, optimizer).metrics
    for label in values(policy):
        prefix = f"audit/{label}/from_"
        shares = {name.removeprefix(prefix): v for name, v in metrics.items() if name.startswith(prefix)}
        assert set(shares) == {"reward", "kl", "entropy", "momentum", "decay", "other"}
        assert sum(shares.values()) == pytest.approx(metrics[f"audit/{label}/slope"], rel=1e-9)
        assert abs(shares["other"]) < 1e-6 * max(abs(share) for share in shares.values())
    assert metrics["audit/unexplained"] < 1e-6


def test_the_audit_reads_back_every_coefficient():
    metrics = audited_step(Policy(), None).metrics
    coefs = {name.split("/")[1]: value for name, value in metrics.items() if name.endswith("/coef")}
    assert coefs == pytest.approx({"policy": 1.0, "kl": 0.1, "entropy": 0.3}, rel=1e-6)
    merged = audited_step(Policy(), None, "cagrad").metrics
    assert merged["audit/entropy/coef"] == pytest.approx(0.3, rel=1e-6)
    assert merged["audit/kl/coef"] == pytest.approx(0.1, rel=1e-6)


def test_it_answers_who_lowers_the_entropy():
    metrics = audited_step(Policy(), None, bonus=0.01).metrics
    assert metrics["audit/entropy/from_entropy"] > 0
    assert metrics["audit/policy/a/from_reward"] > 0
    assert metrics["audit/kl/from_kl"] < 0
    only_reward = audited_step(Policy(), None, bonus=0.0, beta=0.0).metrics
    assert only_reward["audit/entropy/slope"] == pytest.approx(only_reward["audit/entropy/from_reward"])


def test_a_term_of_weight_zero_is_watched_and_held_responsible_for_nothing():
    metrics = audited_step(Policy(), None, bonus=0.0).metrics
    assert "audit/entropy/slope" in metrics
    assert "audit/entropy/coef" not in metrics
    assert "audit/entropy/from_entropy" not in metrics


@pytest.mark.parametrize("wrong", ["policy/a", "policy/b", "kl", "entropy"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [0.3, 0.01])
def test_a_sign_turned_in_any_path_is_named(wrong, dtype, weight):
    policy = Policy(dtype)
    auditor = Auditor(policy.leaves())
    terms = policy.terms(bonus=weight, beta=weight)
    auditor.add(terms)
    policy.zero_grad()
    loss = sum(
        (-1.0 if term.sense == "maximize" else 1.0) * (-1.0 if term.label == wrong else 1.0) * term.weight * term.value
        for term in terms
    )
    loss.backward()
    report = auditor.finish()
    assert len(report.errors) == 1
    assert repr(wrong) in report.errors[0]
    with pytest.raises(SignError, match="own contribution"):
        report.check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["sum", "cagrad", "upgrad"])
def test_right_signs_are_never_called_wrong(dtype, kind):
    for seed in range(10):
        policy = Policy(dtype, seed)
        optimizer = AdamW(policy.leaves(), lr=0.01)
        for _ in range(3):
            report = audited_step(policy, optimizer, kind, bonus=1e-3, beta=1e-4)
            assert report.errors == ()
            report.check()
            optimizer.step()


def test_a_term_that_cannot_be_told_from_another_is_not_accused():
    policy = Policy()
    auditor = Auditor(policy.leaves())
    value = policy.terms()[3].value
    auditor.add([Term("entropy", value, "maximize", 1.0), Term("cost", value * 1.0, "minimize", 0.1)])
    (-0.9 * value).backward()
    report = auditor.finish()
    assert report.errors == ()
    assert "audit/cost/coef" not in report.metrics


@pytest.mark.parametrize("sign", [1, -1])
def test_the_dust_of_a_reward_without_contrast_is_not_accused(sign):
    policy = Policy(torch.float32)
    generator = torch.Generator().manual_seed(3)
    direction, noise = torch.randn(2, 6, 5, generator=generator)
    # All advantages are 0: the natural gradient is what rounding leaves, in no relation to the gradient that was made.
    dust = 1e-9 * (direction * policy.logits).sum()
    _, _, kl, _ = policy.terms()
    auditor = Auditor(policy.leaves())
    auditor.add([Term("policy", dust, "maximize"), kl])
    (kl.value * kl.weight).backward()
    assert policy.logits.grad is not None
    policy.logits.grad += 1e-7 * (noise + sign * 3 * direction)
    assert auditor.finish().errors == ()


def test_a_negated_entropy_is_refused_by_its_value():
    policy = Policy()
    auditor = Auditor(policy.leaves())
    terms = [Term("entropy", -policy.terms()[3].value, "minimize", 0.1)]
    auditor.add(terms)
    GradientMerger(policy.leaves()).add(terms)
    report = auditor.finish()
    assert "never negative" in report.errors[0]


@pytest.mark.parametrize("wrong", ["policy/b", "kl", "entropy"])
def test_a_term_that_comes_with_the_opposite_of_its_wish_is_named_though_no_sign_was_lost(wrong):
    policy = Policy()
    turn = {"maximize": "minimize", "minimize": "maximize"}
    made = [replace(term, sense=turn[term.sense]) if term.label == wrong else term for term in policy.terms()]
    errors = []
    for wishes in (None, EXPECTED_SENSES):
        auditor, merger = Auditor(policy.leaves(), expected_senses=wishes), GradientMerger(policy.leaves())
        auditor.add(made)
        merger.add(made)
        merger.finish()
        errors.append(auditor.finish().errors)
        made = [replace(made[i], value=term.value) for i, term in enumerate(policy.terms())]
    assert errors[0] == ()
    assert len(errors[1]) == 1
    assert repr(wrong) in errors[1][0]


def test_micro_batches_add_up():
    policy = Policy()
    whole = audited_step(policy, None).metrics
    auditor, merger = Auditor(policy.leaves()), GradientMerger(policy.leaves())
    for _ in range(2):
        made = [Term(t.name, t.value / 2, t.sense, t.weight, t.task) for t in policy.terms()]
        auditor.add(made)
        merger.add(made)
    merger.finish()
    assert auditor.finish().metrics == pytest.approx(whole, rel=1e-6, abs=1e-9)


def test_the_audit_leaves_the_gradient_and_the_weights_alone():
    policy, other = Policy(), Policy()
    audited_step(policy, None)
    merger = GradientMerger(other.leaves())
    merger.add(other.terms())
    merger.finish()
    for a, b in zip(policy.leaves(), other.leaves(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)


def test_clipping_scales_the_coefficients_together():
    policy = Policy()
    auditor, merger = Auditor(policy.leaves()), GradientMerger(policy.leaves())
    made = policy.terms()
    auditor.add(made)
    merger.add(made)
    merger.finish()
    norm = nn.utils.clip_grad_norm_(policy.leaves(), 0.01).item()
    assert auditor.finish().metrics["audit/entropy/coef"] == pytest.approx(0.3 * 0.01 / norm, rel=1e-3)


def test_reduction_reaches_every_buffer():
    policy = Policy()
    auditor = Auditor(policy.leaves(), reduce=lambda t: t.mul_(2))
    made = policy.terms()
    auditor.add(made)
    for term in made:
        ((-1.0 if term.sense == "maximize" else 1.0) * 2 * term.weight * term.value).backward(retain_graph=True)
    assert auditor.finish().metrics["audit/entropy/coef"] == pytest.approx(0.3)


def rounded(coef: float, *, small: float, dtype: torch.dtype) -> Any:
    """Audit a gradient of a large and a small term whose rounding lies along two directions, the small term's in it."""
    weight = nn.Parameter(torch.zeros(4000))
    large, bonus, other = torch.randn(3, 4000, generator=torch.Generator().manual_seed(1))
    auditor = Auditor([weight], dtype=dtype)
    auditor.add(
        [
            Term("policy", (large * weight).sum(), "maximize", 1.0),
            Term("entropy", (bonus * weight).sum(), "maximize", small),
        ]
    )
    weight.grad = -large - coef * bonus + 0.002 * bonus + 0.006 * other
    return auditor.finish()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_that_lies_along_a_small_term_accuses_nobody(dtype):
    report = rounded(0.001, small=0.001, dtype=dtype)
    assert report.errors == ()
    assert report.unjudged == ("entropy",)
    assert report.metrics["audit/unjudged"] == 1
    assert report.metrics["audit/entropy/coef"] == pytest.approx(-0.001, rel=0.2)
    assert report.metrics["audit/entropy/coef_error"] > 0.001


def test_a_sign_that_stands_out_of_the_rounding_is_named():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        report = rounded(-0.05, small=0.05, dtype=dtype)
        assert len(report.errors) == 1
        assert "'entropy'" in report.errors[0]
        assert report.unjudged == ()


def test_in_float32_a_remainder_is_noise_over_all_entries():
    assert rounded(-0.001, small=0.001, dtype=torch.float32).errors
    assert rounded(0.05, small=0.05, dtype=torch.float32).metrics["audit/entropy/coef_error"] < 5e-4


def test_the_type_is_that_of_the_leaves_unless_given():
    bonus = torch.ones(64)
    for dtype, hidden in ((torch.float32, ()), (torch.bfloat16, ("entropy",))):
        weight = nn.Parameter(torch.zeros(64, dtype=dtype))
        auditor = Auditor([weight])
        auditor.add([Term("entropy", (bonus.to(dtype) * weight).sum(), "maximize", 1e-3)])
        weight.grad = (-1e-3 * bonus + torch.linspace(-0.0015, 0.0015, 64)).to(dtype)
        assert auditor.finish().unjudged == hidden


def test_coefficients_alone_have_no_slopes():
    policy = Policy()
    auditor, merger = Auditor(policy.leaves()), GradientMerger(policy.leaves())
    made = policy.terms()
    auditor.add(made)
    merger.add(made)
    merger.finish()
    metrics = auditor.finish(slopes=False).metrics
    assert metrics["audit/entropy/coef"] == pytest.approx(0.3)
    assert not any(name.endswith("/slope") or "/from_" in name for name in metrics)


class Wide(nn.Module):
    """A linear policy with many entries, for the sampled audit."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(0.05 * torch.randn(64, 256, generator=rng))
        self.bias = nn.Parameter(torch.zeros(64))
        self.x = torch.randn(32, 256, generator=rng)
        self.reward = torch.rand(32, 64, generator=rng)

    def terms(self, bonus: float) -> list[Term]:
        logp = (self.x @ self.weight.T + self.bias).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        return [
            Term("policy", (logp.exp() * self.reward).sum(-1).mean(), "maximize", task="a"),
            Term("entropy", entropy, "maximize", bonus),
        ]


@pytest.mark.parametrize("entries", [200, 2000, 1 << 26])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_sample_of_the_entries_tells_signs_and_coefficients_and_roughly_slopes(entries, sign):
    model = Wide()
    auditor = Auditor(list(model.parameters()), max_entries=entries)
    terms = model.terms(0.02)
    auditor.add(terms)
    (-terms[0].value - sign * 0.02 * terms[1].value).backward()
    optimizer = SGD(model.parameters(), lr=1e-2)
    report = auditor.finish(optimizer)
    assert report.metrics["audit/entropy/coef"] == pytest.approx(sign * 0.02, rel=1e-2)
    assert bool(report.errors) == (sign < 0)
    optimizer.step()
    change = model.terms(0.02)[0].value.item() - terms[0].value.item()
    assert report.metrics["audit/policy/a/slope"] == pytest.approx(change, rel=0.5 if entries < 1000 else 0.2)


def test_bad_input_raises_one_clear_line():
    policy = Policy()
    with pytest.raises(ValueError, match="max_entries"):
        Auditor(policy.leaves(), max_entries=0)
    with pytest.raises(ValueError, match="no term"):
        Auditor(policy.leaves()).finish()
    auditor = Auditor(policy.leaves())
    auditor.add(policy.terms(bonus=0.1))
    with pytest.raises(ValueError, match="changes its sense or weight"):
        auditor.add(policy.terms(bonus=0.2))
    policy.terms()[0].value.backward()
    for optimizer, message in (
        (RMSprop(policy.leaves()), "knows SGD, Adam and AdamW"),
        (SGD(policy.leaves(), lr=0.1, maximize=True), "maximize"),
        (SGD([torch.zeros(1, requires_grad=True)], lr=0.1), "does not hold"),
    ):
        with pytest.raises(ValueError, match=message):
            list(next_updates(policy.leaves(), optimizer))
