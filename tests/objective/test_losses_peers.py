"""Ours against the numbers that TRL's and verl's own functions gave (fixtures/make_losses_*.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from levelhead.objective import kl, losses, masks

FIXTURES = Path(__file__).parent / "fixtures"
TRL = json.loads((FIXTURES / "losses_trl.json").read_text())
VERL = json.loads((FIXTURES / "losses_verl.json").read_text())
CLOSE = {"rtol": 1e-9, "atol": 1e-12}

OURS: dict[str, dict[str, Any]] = {
    "trl ppo_clip/sequence_mean": {},
    "trl ppo_clip/token_mean": {},
    "trl ppo_clip/dapo": {"mode": "token_mean"},
    "trl ppo_clip/fixed_length": {"fixed_length": 10},
    "trl ppo_clip/clip_higher": {"mode": "token_mean", "clip_low": 0.1, "clip_high": 0.28},
    "trl ppo_clip/dual": {"mode": "token_mean", "dual_clip": 1.4},
    "trl gspo/sequence_mean": {"clip_low": 0.03, "clip_high": 0.04},
    "trl cispo/token_mean": {"clip_low": 1.0, "clip_high": 0.3},
    "trl sapo/sequence_mean": {},
    "verl ppo_clip/token_mean": {},
    "verl ppo_clip/sequence_mean": {},
    "verl ppo_clip/fixed_length": {"fixed_length": 10},
    "verl ppo_clip/dual": {"mode": "token_mean", "dual_clip": 1.4},
    "verl gspo/sequence_mean": {"clip_low": 0.03, "clip_high": 0.04},
    "verl gspo/token_mean": {"clip_low": 0.03, "clip_high": 0.04},
    "verl sapo/sequence_mean": {},
    "verl cispo/token_mean": {"clip_low": 0.1, "clip_high": 0.3},
    "verl gmpo/sequence_mean": {"clip_low": 0.1, "clip_high": 0.2},
    "verl kl_cov/token_mean": {"cov_fraction": 0.2, "cov_kl": 0.7},
    "verl clip_cov/token_mean": {"cov_fraction": 1.0, "cov_low": 0.2},
}


def table(batch: dict[str, Any], key: str) -> Tensor:
    return torch.tensor(batch[key], dtype=torch.float64)


def ours(batch: dict[str, Any], case: str, options: dict[str, Any], **extra: Any) -> tuple[Tensor, Tensor, dict]:
    options = dict(options)
    name, mode = case.split()[1].split("/")
    mode, length = options.pop("mode", mode), options.pop("fixed_length", None)
    logp, mask = table(batch, "logp").requires_grad_(), table(batch, "mask")
    generator = torch.Generator().manual_seed(0) if name == "clip_cov" else None
    result = losses.policy_loss(
        name, logp, table(batch, "old_logp"), table(batch, "advantages"), mask, generator=generator, **options, **extra
    )
    loss = losses.aggregate(mode, result.per_token_nt, mask, fixed_length=length)
    loss.backward()
    return loss, logp.grad, dict(result.stats)


@pytest.mark.parametrize("case", OURS)
def test_loss_and_gradient_equal_the_peers(case):
    peer = {"trl": TRL, "verl": VERL}[case.split()[0]]
    recorded = peer["cases"][case.split()[1]]
    loss, grad, stats = ours(peer["batch"], case, OURS[case])
    # verl divides by a row's length plus 1e-8; TRL holds SAPO's temperatures in float32.
    close = CLOSE if peer is TRL and "sapo" not in case else {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(loss.item(), recorded["loss"], **close)
    torch.testing.assert_close(grad, torch.tensor(recorded["grad"], dtype=torch.float64), **close)
    for name, value in recorded.get("stats", {}).items():
        if name in stats and "gspo" not in case:
            assert stats[name].item() == pytest.approx(value, rel=1e-6), name


def test_gspo_clip_share_counts_tokens_where_trl_counts_sequences():
    _, _, stats = ours(TRL["batch"], "trl gspo/sequence_mean", OURS["trl gspo/sequence_mean"])
    lengths = table(TRL["batch"], "mask").sum(dim=1)
    theirs = TRL["cases"]["gspo/sequence_mean"]["stats"]["clip_ratio/region_mean"]
    ours_by_token = stats["clip_ratio/region_mean"].item()
    assert theirs * len(lengths) == pytest.approx(round(theirs * len(lengths)))
    assert ours_by_token * lengths.sum().item() == pytest.approx(round(ours_by_token * lengths.sum().item()), abs=1e-4)


def test_a_fully_masked_row_is_left_out_as_in_verl_and_not_counted_as_zero_as_in_trl():
    loss, _, _ = ours(VERL["holed_batch"], "verl ppo_clip/sequence_mean", {})
    torch.testing.assert_close(loss.item(), VERL["holed"]["ppo_clip/sequence_mean"]["loss"], rtol=3e-8, atol=1e-8)
    rows = len(VERL["holed_batch"]["mask"])
    theirs = TRL["holed"]["ppo_clip/sequence_mean"]["loss"]
    torch.testing.assert_close(loss.item() * (rows - 1) / rows, theirs, **CLOSE)


@pytest.mark.parametrize(
    ("recorded", "name", "gradient"),
    [
        ("k1", "k1", "plain"),
        ("k2", "k2", "plain"),
        ("k3", "k3", "plain"),
        ("k3+", "k3", "k2"),
    ],
)
def test_kl_values_and_gradients_equal_verl(recorded, name, gradient):
    logp, mask = table(VERL["batch"], "logp").requires_grad_(), table(VERL["batch"], "mask")
    value = kl.estimate(name, logp, table(VERL["batch"], "ref_logp"), gradient=gradient)
    losses.aggregate("token_mean", value, mask).backward()
    for mine, theirs in ((value, "value"), (logp.grad, "grad")):
        torch.testing.assert_close(mine, torch.tensor(VERL["kl"][recorded][theirs], dtype=torch.float64), **CLOSE)


def test_a_forgotten_token_keeps_its_pull_where_verl_loses_it():
    far = VERL["far_batch"]
    logp = table(far, "logp").requires_grad_()
    value = kl.estimate("k3", logp, table(far, "ref_logp"))
    value.sum().backward()
    theirs = VERL["far_kl"]["k3"]
    assert theirs["value"][0][0] == 10
    assert theirs["grad"][0][0] == 0
    assert value[0, 0] > 1e8
    assert logp.grad[0, 0] < -1e8


@pytest.mark.parametrize(("case", "gradient"), [("k3/token_mean", "plain"), ("k3_importance/token_mean", "importance")])
def test_policy_loss_and_kl_add_up_to_trl(case, gradient):
    batch, recorded = TRL["batch"], TRL["cases"][case]
    logp, mask, old = table(batch, "logp").requires_grad_(), table(batch, "mask"), table(batch, "old_logp")
    policy = losses.policy_loss("ppo_clip", logp, old, table(batch, "advantages"), mask)
    leash = kl.estimate(
        "k3", logp, table(batch, "ref_logp"), gradient=gradient, old_logp_nt=old if gradient == "importance" else None
    )
    loss = losses.aggregate("token_mean", policy.per_token_nt + 0.1 * leash, mask)
    loss.backward()
    torch.testing.assert_close(loss.item(), recorded["loss"], **CLOSE)
    torch.testing.assert_close(logp.grad, torch.tensor(recorded["grad"], dtype=torch.float64), **CLOSE)


def test_top_entropy_mask_equals_trl():
    batch, recorded = TRL["batch"], TRL["cases"]["top_entropy/token_mean"]
    entropies, mask = table(batch, "entropies"), table(batch, "mask")
    keep = (entropies >= masks.entropy_threshold(entropies, mask, 0.3)) & (mask != 0)
    loss, grad, _ = ours(batch, "trl ppo_clip/token_mean", {}, weight_nt=keep)
    torch.testing.assert_close(loss.item(), recorded["loss"], **CLOSE)
    torch.testing.assert_close(grad, torch.tensor(recorded["grad"], dtype=torch.float64), **CLOSE)


def test_truncated_importance_weights_equal_trl():
    batch, recorded = TRL["batch"], TRL["cases"]["importance/token_mean"]
    weights = losses.importance_weights(
        "token_truncate", table(batch, "old_logp"), table(batch, "behaviour_logp"), table(batch, "mask"), high=1.5
    )
    loss, grad, _ = ours(batch, "trl ppo_clip/token_mean", {}, weight_nt=weights.weight_nt)
    torch.testing.assert_close(loss.item(), recorded["loss"], **CLOSE)
    torch.testing.assert_close(grad, torch.tensor(recorded["grad"], dtype=torch.float64), **CLOSE)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_weights_equal_verl(level):
    batch = VERL["batch"]
    weights = losses.importance_weights(
        f"{level}_truncate", table(batch, "old_logp"), table(batch, "behaviour_logp"), table(batch, "mask"), high=1.5
    )
    torch.testing.assert_close(weights.weight_nt, torch.tensor(VERL["importance"][level], dtype=torch.float64), **CLOSE)
