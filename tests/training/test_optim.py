from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.recipe import validate
from levelhead.recipe.training import Optimizer
from levelhead.training.optim import Updater
from levelhead.training.prepare import prepare
from small_run import recipe, steps, tiny_policy

RECIPE = Optimizer(learning_rate=0.1, weight_decay=0.3, max_grad_norm=1e9)


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 5), (4,), (2, 2))]


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_updates_are_those_of_adamw_computed_by_hand() -> None:
    trained, wanted = weights(), [p.detach().double() for p in weights()]
    updater = Updater(trained, RECIPE, steps=5)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in wanted]
    beta1, beta2 = RECIPE.betas
    for step in range(5):
        give_gradients(trained, step)
        gradients = [p.grad.double() for p in trained]
        updater.prepare()
        rate = updater.learning_rate
        updater.step()
        # Loshchilov and Hutter 2019, algorithm 2.
        for p, g, (first, second) in zip(wanted, gradients, moments, strict=True):
            first.mul_(beta1).add_((1 - beta1) * g)
            second.mul_(beta2).add_((1 - beta2) * g * g)
            p.mul_(1 - rate * RECIPE.weight_decay)
            p.sub_(
                rate * (first / (1 - beta1 ** (step + 1))) / ((second / (1 - beta2 ** (step + 1))).sqrt() + RECIPE.eps)
            )
    for a, b in zip(trained, wanted, strict=True):
        torch.testing.assert_close(a.detach().double(), b, rtol=1e-5, atol=1e-6)


def test_the_state_of_an_optimizer_that_was_not_fused_goes_on() -> None:
    plain = weights()
    optimizer = torch.optim.AdamW(plain, lr=0.1, betas=RECIPE.betas, eps=RECIPE.eps, weight_decay=0.3)
    give_gradients(plain, 0)
    optimizer.step()
    copies = [nn.Parameter(p.detach().clone()) for p in plain]
    updater = Updater(copies, RECIPE, steps=5)
    updater.optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameters in (plain, copies):
        give_gradients(parameters, 1)
    updater.prepare()
    for group in optimizer.param_groups:
        group["lr"] = updater.learning_rate
    optimizer.step()
    updater.step()
    for a, b in zip(copies, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


MUON = Optimizer(kind="muon", learning_rate=0.1, max_grad_norm=1e9)


def test_muon_steps_a_matrix_by_its_orthogonalised_gradient_and_the_rest_by_adamw() -> None:
    matrix, vector, plain = weights()
    before = [p.detach().clone() for p in (matrix, vector, plain)]
    updater = Updater([matrix, vector, plain], MUON, steps=5, matrices=[matrix])
    give_gradients([matrix, vector, plain], 0)
    gradient = matrix.grad
    assert gradient is not None
    updater.prepare()
    updater.step()
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    # 0.2 sqrt(max(n, m)) makes the step's root mean square that of AdamW's (Liu et al. 2025, section 2.2).
    wanted = 0.1 * 0.2 * 5**0.5 * (u @ v)
    step = before[0] - matrix.detach()
    # Five Newton-Schulz steps bring singular values near 1, not to it (Jordan et al. 2024: 0.7 to 1.2).
    assert torch.nn.functional.cosine_similarity(step.flatten(), wanted.flatten(), dim=0) > 0.97
    assert 0.6 * wanted.norm() < step.norm() < 1.3 * wanted.norm()
    # The first step of AdamW is the sign of the gradient times the rate.
    for parameter, old in zip((vector, plain), before[1:], strict=True):
        torch.testing.assert_close((old - parameter.detach()).abs(), torch.full_like(old, 0.1), rtol=1e-4, atol=1e-5)


def test_muon_goes_on_from_its_saved_state_as_if_it_had_not_stopped() -> None:
    def train(parameters: list[nn.Parameter], updater: Updater, steps: range) -> None:
        for step in steps:
            give_gradients(parameters, step)
            updater.prepare()
            updater.step()

    whole = weights()
    updater = Updater(whole, MUON, steps=5, matrices=[whole[0], whole[2]])
    train(whole, updater, range(2))
    state = copy.deepcopy(updater.optimizer.state_dict())
    resumed = [nn.Parameter(p.detach().clone()) for p in whole]
    train(whole, updater, range(2, 5))
    other = Updater(resumed, MUON, steps=5, matrices=[resumed[0], resumed[2]])
    other.optimizer.load_state_dict(state)
    other.done = 2
    train(resumed, other, range(2, 5))
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(a, b)


def test_muon_alone_steps_a_lora_adapter_which_is_nothing_but_matrices() -> None:
    policy = tiny_policy(lora={"r": 4, "alpha": 8})
    before = [p.detach().clone() for p in policy.parameters]
    updater = Updater(policy.parameters, MUON, steps=2, matrices=policy.matrices)
    give_gradients(policy.parameters, 0)
    updater.prepare()
    updater.step()
    assert all(not torch.equal(p, old) for p, old in zip(policy.parameters, before, strict=True))
    again = Updater(policy.parameters, MUON, steps=2, matrices=policy.matrices)
    again.load(copy.deepcopy(updater.state_dict()))
    assert [len(part.state) for part in again.parts] == [len(policy.parameters)]


def test_a_torch_without_muon_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    parameters = weights()
    with pytest.raises(InputError, match=r"optimizer\.kind: muon needs torch 2\.9"):
        Updater(parameters, MUON, steps=1, matrices=parameters[:1])


def test_a_policy_learns_by_grpo_with_muon_and_its_signs_are_audited(tmp_path: Path) -> None:
    changes = {"sft": None, "grpo__optimizer__kind": "muon", "eval__constant": False}
    result = train(recipe(tmp_path, **changes), out=tmp_path / "run")
    rows = steps(result.folder, "grpo")
    assert len(rows) == 4
    assert rows[0]["audit/policy/one/coef"] > 0
    assert not any("slope" in name for name in rows[0])


def test_what_muon_remembers_is_dropped_when_weights_go_back() -> None:
    parameters = weights()
    updater = Updater(parameters, MUON, steps=2, matrices=parameters[:1])
    sum(p.sum() for p in parameters).backward()  # type: ignore[union-attr]
    updater.step()
    assert all(part.state for part in updater.parts)
    updater.forget()
    assert not any(part.state for part in updater.parts)


def test_an_update_that_products_round_away_is_measured() -> None:
    weights = [torch.nn.Parameter(torch.full((8, 8), 0.5))]
    for kind, seen in ((torch.float32, None), (torch.bfloat16, 0.0)):
        updater = Updater(weights, Optimizer(learning_rate=1e-6), 5)
        updater.rounds_to = kind
        weights[0].grad = torch.ones(8, 8)
        updater.prepare()
        updater.step()
        assert updater.visible.get("update/visible") == seen


def test_updates_that_add_up_come_to_be_seen() -> None:
    """One step of 4e-4 lies below half the spacing of bfloat16 under 0.5 (1e-3), four of them above it."""
    weights = [torch.nn.Parameter(torch.full((8, 8), 0.5))]
    updater = Updater(weights, Optimizer(learning_rate=4e-4, weight_decay=0.0), 5)
    updater.rounds_to = torch.bfloat16
    shown = []
    for _ in range(4):
        weights[0].grad = torch.ones(8, 8)
        updater.prepare()
        updater.step()
        shown.append(updater.visible["update/visible_cosine"])
    assert shown[0] == 0
    assert shown[-1] == pytest.approx(1)


EIGHT = ("adamw_8bit", "paged_adamw_8bit")


def shifts(kind: str, steps: int = 4, stop: int = 4) -> tuple[list[nn.Parameter], Updater]:
    """Weights of 8,192 and 64 entries after some updates by gradients of a seed; saved and taken up after ``stop``."""
    generator = torch.Generator().manual_seed(3)
    trained = [nn.Parameter(torch.randn(n, 64, generator=generator)) for n in (128, 1)]
    config = Optimizer(kind=kind, learning_rate=0.01, weight_decay=0.1)  # type: ignore[arg-type]
    updater = Updater(trained, config, steps=steps)
    for step in range(steps):
        if step == stop:
            state = io.BytesIO()
            torch.save(updater.state_dict(), state)
            state.seek(0)
            updater = Updater(trained, config, steps=steps)
            updater.load(torch.load(state, weights_only=True))
        give_gradients(trained, step)
        updater.prepare()
        updater.step()
    return trained, updater


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("kind", EIGHT)
def test_moments_of_eight_bits_step_as_adamw_within_their_rounding_and_go_on_from_their_state(kind: str) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    begin, (wanted, _), (seen, updater) = shifts(kind, 0)[0], shifts("adamw"), shifts(kind)
    kinds = [{value.dtype for value in updater.optimizer.state[p].values() if torch.is_tensor(value)} for p in seen]
    assert torch.uint8 in kinds[0]
    assert torch.uint8 not in kinds[1]
    for old, a, b in zip(begin, seen, wanted, strict=True):
        assert torch.nn.functional.cosine_similarity((a - old).flatten(), (b - old).flatten(), dim=0) > 0.99
    for a, b in zip(seen, shifts(kind, stop=2)[0], strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_a_policy_learns_by_grpo_with_moments_of_eight_bits_and_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path,
) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    changes = {"sft": None, "grpo__optimizer__kind": "adamw_8bit", "eval__constant": False}
    whole = train(recipe(tmp_path, **changes), out=tmp_path / "whole")
    assert steps(whole.folder, "grpo")[0]["audit/policy/one/coef"] > 0
    again = train(recipe(tmp_path, **changes), out=tmp_path / "whole", resume=True, resume_from="step-000003")
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    assert "resume-differs" not in (again.folder / "events.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", EIGHT)
def test_moments_of_eight_bits_without_bitsandbytes_are_refused_before_anything_is_loaded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"grpo\.optimizer\.kind: {kind}: needs bitsandbytes.*pip install"):
        prepare(validate(recipe(tmp_path, model={"name": "no/such-model"}, sft=None, grpo__optimizer__kind=kind)))
