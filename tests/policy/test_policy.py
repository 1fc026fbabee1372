"""Packed log-probabilities, entropies and gradients against plain forward passes of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from levelhead.policy.backends.cpu import attention
from levelhead.policy.packing import TokenSequence, pack
from levelhead.policy.policy import Policy
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from small_run import TEXTS, alone, codec_ids, spread_out, tiny_policy


def group() -> list[TokenSequence]:
    """Two prompts; completions of one prompt share beginnings; one episode of three turns shares its history."""
    ids = codec_ids()
    prompt, other = ids[10:24], ids[40:47]
    turn = (*other, *ids[5:9])
    return [
        TokenSequence(prompt, ids[1:5], 0),
        TokenSequence(prompt, (*ids[1:3], *ids[7:12]), 0),
        TokenSequence(prompt, ids[1:2], 0),
        TokenSequence(prompt, ids[1:5], 0),
        TokenSequence(other, ids[5:7], 1),
        TokenSequence(turn, ids[60:63], 1),
        TokenSequence((*turn, *ids[60:63], *ids[80:82]), ids[90:95], 1),
        TokenSequence(ids[30:33], ids[50:58], 2),
    ]


def pulls(sequences: list[TokenSequence]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, len(s.completion_ids), generator=generator) for s in sequences]


def in_plain(policy: Policy, sequences: list[TokenSequence], temperature: float) -> tuple[list[Any], list[Any]]:
    with policy.autocast():
        stats = [alone(policy, s.context_ids, s.completion_ids, temperature) for s in sequences]
    loss = sum((p[0] * logp + p[1] * entropy).sum() for p, (logp, entropy) in zip(pulls(sequences), stats, strict=True))
    return stats, gradient(policy, loss)


def in_packs(
    policy: Policy, sequences: list[TokenSequence], temperature: float, tokens: int, layout: str
) -> tuple[list[Any], list[Any]]:
    stats: dict[int, Any] = {}
    wanted = pulls(sequences)
    policy.model.zero_grad(set_to_none=True)
    assert policy.backend.name == "cpu" or layout != "flat"
    share, flat = layout != "apart", layout == "flat"
    with policy.training():
        for micro in pack(sequences, tokens=tokens, pad_id=policy.codec.pad_id, share=share, flat=flat):
            scored = policy.score(micro, temperature)
            logp, entropy = spread_out(micro, scored.logp), spread_out(micro, scored.entropy)
            sum((wanted[i][0] * logp[i] + wanted[i][1] * entropy[i]).sum() for i in logp).backward()
            stats |= {i: (logp[i].detach(), entropy[i].detach()) for i in logp}
    grads = [p.grad for p in policy.parameters]
    return [stats[i] for i in range(len(sequences))], grads


def gradient(policy: Policy, loss: torch.Tensor) -> list[Any]:
    return list(torch.autograd.grad(loss, policy.parameters, allow_unused=True))


def close(values: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(values, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("layout", ["flat", "padded", "apart"])
@pytest.mark.parametrize("tokens", [1, 24, 10_000])
@pytest.mark.parametrize(
    "model",
    [{}, {"gradient_checkpointing": True}, {"lora": {"r": 4}}, {"lora": {"r": 4}, "gradient_checkpointing": True}],
    ids=["full", "checkpointing", "lora", "lora-checkpointing"],
)
def test_packed_scores_and_gradients_equal_the_plain_computation(
    model: dict[str, Any], tokens: int, layout: str
) -> None:
    policy = adapted(**model)
    sequences = group()
    stats, grads = in_plain(policy, sequences, 0.8)
    scores, found_grads = in_packs(policy, sequences, 0.8, tokens, layout)
    for (logp, entropy), (want_logp, want_entropy) in zip(scores, stats, strict=True):
        close([logp, entropy], [want_logp.detach(), want_entropy.detach()])
    assert any(float(g.abs().max()) > 1e-3 for g in grads if g is not None)
    close(found_grads, grads)


def adapted(**model: Any) -> Policy:
    """A policy whose adapters, if any, change something."""
    policy = tiny_policy(**model)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    return policy


@pytest.mark.parametrize(
    "model",
    [{}, {"gradient_checkpointing": True}, {"lora": {"r": 4}}, {"lora": {"r": 4}, "gradient_checkpointing": True}],
    ids=["full", "checkpointing", "lora", "lora-checkpointing"],
)
def test_half_precision_packs_are_as_exact_as_the_plain_computation_in_half_precision(model: dict[str, Any]) -> None:
    sequences = group()
    policy = adapted(**model)
    exact, exact_grads = in_plain(policy, sequences, 0.8)
    policy.compute_dtype = torch.bfloat16
    plain, plain_grads = in_plain(policy, sequences, 0.8)
    scores, grads = in_packs(policy, sequences, 0.8, 10_000, "flat")

    def error(one: list[Any], other: list[Any]) -> float:
        a, b = (torch.cat([x.detach().flatten() for x in side if x is not None]) for side in (one, other))
        return float((a - b).norm() / b.norm())

    for i in range(2):
        want = [stats[i] for stats in exact]
        assert error([stats[i] for stats in scores], want) < 2 * error([stats[i] for stats in plain], want)
    assert error(grads, exact_grads) < 2 * error(plain_grads, exact_grads)


def test_the_reference_reads_the_layout_of_the_policy_whenever_it_is_kept() -> None:
    early, late = tiny_policy(), tiny_policy()
    early.keep_reference(trained=False)
    micros = [policy.pack(group(), 10_000)[0] for policy in (early, late)]
    late.keep_reference(trained=False)
    assert all(micro.nodes for micro in micros)
    for policy, micro in zip((early, late), micros, strict=True):
        torch.testing.assert_close(policy.reference_logp(micro), policy.score(micro).logp.detach())


@pytest.mark.parametrize("broken", ["wrong", "refused", "unseen"])
def test_attention_that_cannot_branch_is_announced_and_masked(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def attend(self: attention.Forest, _layer: int, query: torch.Tensor, *_: Any) -> torch.Tensor:
        if broken == "refused":
            raise ValueError("attention with softcap cannot run on trees")
        self.seen += broken == "wrong"
        return torch.zeros_like(query)

    monkeypatch.setattr(attention.Forest, "attend", attend)
    policy = tiny_policy()
    with caplog.at_level("WARNING"):
        micros = policy.pack(group(), 10_000)
    assert not any(micro.nodes for micro in micros)
    assert "padding and masks instead" in caplog.text
    assert policy.base.config._attn_implementation == "sdpa"
    layer = policy.base.get_decoder().layers[-1]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in layer.modules())
    scores, _ = in_packs(policy, group(), 0.8, 10_000, "padded")
    for one, other in zip(scores, in_plain(policy, group(), 0.8)[0], strict=True):
        close(list(one), [x.detach() for x in other])


def test_a_saved_model_knows_nothing_of_our_attention(tmp_path: Path) -> None:
    policy = tiny_policy()
    assert policy.backend.name == "cpu"
    policy.save(tmp_path)
    assert "levelhead" not in (tmp_path / "config.json").read_text()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([codec_ids()[:9]])
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=ids).logits, policy.model(input_ids=ids).logits)


FAMILY = {
    "Gemma2": {"final_logit_softcapping": 2.0, "head_dim": 16, "sliding_window": 4},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 4.0},
    "Mistral": {"sliding_window": 4},
    "Phi": {},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
}


@pytest.mark.parametrize("family", sorted(FAMILY))
def test_scores_equal_the_logits_of_other_architectures(family: str) -> None:
    torch.manual_seed(0)
    codec = Codec(train_tokenizer(TEXTS, 300))
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    if family == "GPT2":
        shape = {}
    else:
        shape["num_key_value_heads"] = 2
    config = getattr(transformers, f"{family}Config")(
        vocab_size=codec.vocab_size, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape, **FAMILY[family]
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.eval()
    head = model.get_output_embeddings()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    policy = Policy(model, codec)
    sequences = group()
    with torch.no_grad():
        for micro in policy.pack(sequences, 10_000):
            stats = policy.score(micro)
            logp, entropy = spread_out(micro, stats.logp), spread_out(micro, stats.entropy)
            for i, value in logp.items():
                want = alone(policy, sequences[i].context_ids, sequences[i].completion_ids)
                close([value, entropy[i]], list(want))


def test_layers_with_a_window_do_not_share_prefixes() -> None:
    codec = Codec(train_tokenizer(TEXTS, 300))
    config = transformers.MistralConfig(
        vocab_size=codec.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=4,
    )  # fmt: skip
    assert not Policy(transformers.MistralForCausalLM(config), codec).shares_prefixes
    assert tiny_policy().shares_prefixes


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("lora", [None, {"r": 4}])
def test_the_reference_stays_where_it_was_while_the_policy_moves(lora: dict | None, trained: bool) -> None:
    policy = tiny_policy(lora=lora)
    micro = policy.pack(group(), 10_000)[0]

    def move() -> None:
        with torch.no_grad():
            for index, parameter in enumerate(policy.parameters):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)))

    if trained:
        move()
    before = policy.score(micro).logp.detach()
    count = len(policy.parameters)
    policy.keep_reference(trained=trained)
    assert len(policy.parameters) == count
    move()
    torch.testing.assert_close(policy.reference_logp(micro), before)
    assert not torch.allclose(policy.score(micro).logp, before, atol=1e-3)
    assert not policy.reference_logp(micro).requires_grad


def test_without_a_reference_there_is_an_error_and_not_a_guess() -> None:
    policy = tiny_policy()
    with pytest.raises(RuntimeError, match="keeps no reference"):
        policy.reference_logp(policy.pack(group(), 10_000)[0])


def test_grpo_policies_have_no_dropout_left() -> None:
    policy = tiny_policy(lora={"r": 4, "dropout": 0.5})
    policy.disable_dropout()
    micro = policy.pack(group(), 10_000)[0]
    with policy.training():
        first, second = policy.score(micro).logp, policy.score(micro).logp
    assert torch.equal(first, second)
