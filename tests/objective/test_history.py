"""The mistake that started this library: an entropy loss negated where it is defined, and once more where it is merged.

The run looked healthy, its bonus lowered the entropy, and nobody could see which sign was the second one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from levelhead.objective import losses
from levelhead.objective.aggregation import AGGREGATORS, ConflictMonitor, GradientMerger
from levelhead.objective.audit import Auditor, AuditReport, SignError
from levelhead.objective.terms import Term

CONTEXTS, SYMBOLS, TOKENS, ROLLOUTS = 4, 6, 3, 32
Path = Callable[["Learner", list[Term]], None]


class Learner(nn.Module):
    """A small policy: contexts 0 and 1 belong to one task, 2 and 3 to another; each rewards symbols of its own."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(CONTEXTS, 8, generator=self.rng))
        self.head = nn.Parameter(torch.randn(SYMBOLS * TOKENS, 8, generator=self.rng) * 0.3)
        self.optimizer = torch.optim.AdamW(self.leaves(), lr=0.02, weight_decay=0.0)

    def leaves(self) -> list[Tensor]:
        return [self.embed, self.head]

    def logits(self) -> Tensor:
        return torch.tanh(self.embed @ self.head.T).view(CONTEXTS, TOKENS, SYMBOLS) * 3

    def entropy(self) -> float:
        logp = self.logits().log_softmax(-1)
        return -(logp.exp() * logp).sum(-1).mean().item()

    def terms(self, bonus: float) -> list[Term]:
        """Draw a batch, score it, and return the policy terms of both tasks and the entropy term."""
        context = torch.arange(ROLLOUTS) % CONTEXTS
        every = self.logits()[context].log_softmax(-1)
        drawn = torch.multinomial(every.detach().exp().view(-1, SYMBOLS), 1, generator=self.rng).view(ROLLOUTS, TOKENS)
        logp = every.gather(-1, drawn[..., None]).squeeze(-1)
        reward = (drawn == context[:, None] % SYMBOLS).float().mean(-1)
        mask = torch.ones(ROLLOUTS, TOKENS)
        terms = []
        for task, rows in (("a", context < 2), ("b", context >= 2)):
            advantages = reward[rows] - reward[rows].mean()
            result = losses.policy_loss("ppo_clip", logp[rows], logp[rows].detach(), advantages, mask[rows])
            value = losses.aggregate("token_mean", result.surrogate_nt, mask[rows], denominator=ROLLOUTS * TOKENS)
            terms.append(Term("policy", value, "maximize", task=task))
        natural = losses.aggregate("token_mean", -(every.exp() * every).sum(-1), mask)
        return [*terms, Term("entropy", natural, "maximize", bonus)]


def library(kind: str) -> Path:
    def path(learner: Learner, terms: list[Term]) -> None:
        merger = GradientMerger(learner.leaves(), kind)
        merger.add(terms)
        merger.finish()

    return path


def negated_twice(learner: Learner, terms: list[Term]) -> None:
    """What the history's code did: a negated "entropy loss", and a merge that subtracts the regulariser again."""
    reward = torch.stack([-term.value for term in terms if term.name == "policy"]).sum()
    (entropy,) = [term for term in terms if term.name == "entropy"]
    entropy_loss = -entropy.value
    rewards = torch.autograd.grad(reward, learner.leaves(), retain_graph=True)
    regulariser = torch.autograd.grad(entropy_loss, learner.leaves(), retain_graph=True)
    for param, g, h in zip(learner.leaves(), rewards, regulariser, strict=True):
        param.grad = g - entropy.weight * h


def train(path: Path, bonus: float, steps: int = 60) -> list[float]:
    learner = Learner()
    trace = [learner.entropy()]
    for _ in range(steps):
        path(learner, learner.terms(bonus))
        learner.optimizer.step()
        trace.append(learner.entropy())
    return trace


def audit(path: Path, bonus: float = 0.05) -> AuditReport:
    learner = Learner()
    auditor = Auditor(learner.leaves())
    terms = learner.terms(bonus)
    auditor.add(terms)
    path(learner, terms)
    return auditor.finish(learner.optimizer)


@pytest.mark.parametrize("kind", ["sum", "cagrad"])
def test_entropy_rises_with_the_bonus_and_falls_without_it_in_both_gradient_paths(kind):
    bonus, none = train(library(kind), 0.5), train(library(kind), 0.0)
    assert bonus[-1] > bonus[0] + 0.05
    assert none[-1] < none[0] - 0.1


def test_the_fault_turns_the_bonus_into_a_penalty():
    fault, none = train(negated_twice, 0.5, steps=15), train(library("sum"), 0.0, steps=15)
    assert fault[-1] < none[-1] - 0.1


def test_the_audit_names_the_fault_at_step_one():
    report = audit(negated_twice)
    with pytest.raises(SignError, match="term 'entropy' is to be maximised, but its own contribution lowers it"):
        report.check()
    assert len(report.errors) == 1
    assert report.metrics["audit/entropy/from_entropy"] < 0
    assert report.metrics["audit/entropy/coef"] == pytest.approx(-0.05, rel=1e-3)


@pytest.mark.parametrize("kind", sorted(AGGREGATORS))
def test_the_audit_finds_nothing_wrong_with_the_librarys_own_path(kind):
    report = audit(library(kind))
    assert report.errors == ()
    assert report.metrics["audit/entropy/from_entropy"] > 0
    assert report.metrics["audit/entropy/coef"] == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("kind", sorted(AGGREGATORS))
@pytest.mark.parametrize("memory", ["full", "low"])
@pytest.mark.parametrize("task", [None, "a"])
@pytest.mark.parametrize("watched", [False, True])
def test_no_setting_of_the_librarys_path_lowers_a_natural_entropy_that_is_to_be_maximised(kind, memory, task, watched):
    learner = Learner()
    logp = learner.logits().log_softmax(-1)
    natural = -(logp.exp() * logp).sum(-1).mean()
    merger = GradientMerger(
        learner.leaves(), kind, memory=memory, monitor=ConflictMonitor(every=1) if watched else None
    )
    merger.add([Term("entropy", natural, "maximize", 0.3, task)])
    merger.finish()
    before = learner.entropy()
    with torch.no_grad():
        for param in learner.leaves():
            param -= 1e-3 * param.grad
    assert learner.entropy() > before


def test_a_sign_cannot_be_hidden_in_a_weight():
    with pytest.raises(ValueError, match="change its sense"):
        Term("entropy", torch.tensor(1.0), "maximize", -0.05)


@pytest.mark.parametrize("sense", ["maximize", "minimize"])
def test_an_entropy_negated_before_it_becomes_a_term_is_refused_at_step_one(sense):
    learner = Learner()
    *policy, entropy = learner.terms(0.05)
    terms = [*policy, Term("entropy", -entropy.value, sense, 0.05)]
    auditor = Auditor(learner.leaves())
    auditor.add(terms)
    library("sum")(learner, terms)
    with pytest.raises(SignError, match="an entropy is never negative"):
        auditor.finish(learner.optimizer).check()
