"""Signs live in one place: what a term wants is what both gradient paths do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import levelhead.objective
from levelhead.objective import losses
from levelhead.objective.terms import Term, as_loss, as_reward, scalar_loss


def quadratic(x: torch.Tensor, seed: int) -> torch.Tensor:
    a = torch.randn(len(x), generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    return (a * x).sum() + (x * x * a.abs()).sum()


@given(
    senses=st.lists(st.sampled_from(["maximize", "minimize"]), min_size=1, max_size=5),
    weights=st.lists(st.floats(0.01, 3.0), min_size=5, max_size=5),
    tasks=st.lists(st.sampled_from(["a", "b", None]), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_every_term_moves_with_its_sense(senses, weights, tasks):
    for index, sense in enumerate(senses):
        x = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
        term = Term("any", quadratic(x, index), sense, weights[index], tasks[index])
        (grad,) = torch.autograd.grad(scalar_loss([term]), x)
        after = quadratic(x.detach() - 1e-4 * grad, index)
        rises = after.item() > term.value.item()
        assert rises == (sense == "maximize")


def test_hand_numbers_of_the_single_loss():
    terms = [Term("policy", torch.tensor(2.0), "maximize"), Term("kl", torch.tensor(3.0), "minimize", 0.1)]
    assert scalar_loss(terms).item() == pytest.approx(-2.0 + 0.3)


def test_as_reward_is_the_opposite_of_as_loss():
    x = torch.tensor([1.0, -2.0])
    for sense in ("maximize", "minimize"):
        assert torch.equal(as_reward(x, sense), -as_loss(x, sense))
    assert torch.equal(as_loss(x, "maximize"), -x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sense": "max"}, "sense must be"),
        ({"weight": -0.1}, "change its sense"),
        ({"weight": float("nan")}, "finite"),
        ({"value": torch.zeros(2)}, "scalar"),
    ],
)
def test_a_bad_term_is_refused_with_one_clear_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        Term(**{"name": "entropy", "value": torch.tensor(1.0), "sense": "maximize", **arguments})
    assert "entropy" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_terms_are_refused():
    with pytest.raises(ValueError, match="at least one term"):
        scalar_loss([])


def test_the_policy_loss_gets_its_sign_from_the_same_function():
    logp = torch.full((1, 2), -1.0)
    result = losses.policy_loss("reinforce", logp, logp, torch.tensor([1.0]), torch.ones(1, 2))
    assert torch.equal(result.per_token_nt, as_loss(result.surrogate_nt, "maximize"))


def test_only_terms_compares_a_sense_and_only_as_loss_turns_it_into_a_sign():
    root = Path(levelhead.objective.__file__).parent
    deciders = set()
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            compares = [node for node in ast.walk(function) if isinstance(node, ast.Compare | ast.IfExp)]
            literals = {n.value for c in compares for n in ast.walk(c) if isinstance(n, ast.Constant)}
            if literals & {"maximize", "minimize"}:
                deciders.add(f"{path.relative_to(root)}:{function.name}")
    assert deciders == {"terms.py:as_loss"}


def test_the_package_itself_imports_no_torch():
    tree = ast.parse(Path(levelhead.objective.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not imports


def test_terms_are_frozen_and_slotted():
    term = Term("kl", torch.tensor(1.0), "minimize")
    with pytest.raises(AttributeError):
        term.weight = 2.0  # type: ignore[misc]
    assert not hasattr(term, "__dict__")
    labels = [Term("kl", torch.tensor(1.0), "minimize", task=task).label for task in (None, "math")]
    assert labels == ["kl", "kl/math"]
