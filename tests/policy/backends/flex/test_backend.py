"""Policies on backend flex against the same weights on the reference backend: values, gradients, and who is refused."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from levelhead.errors import InputError
from levelhead.policy.backends.choose import choose_backend
from levelhead.policy.backends.flex import attention as flex_attention
from levelhead.policy.backends.flex.attention import by_blocks
from levelhead.policy.backends.flex.backend import Flex, kernel_gap, layer_windows
from levelhead.policy.backends.sdpa import Sdpa
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from small_run import TEXTS, spread_out, tiny_policy
from waiting import Waits

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "window": ("Mistral", {"sliding_window": 4}),
    "mixed": ("Qwen2", MIXED),
}


def random_trees(seed: int) -> list[TokenSequence]:
    """Groups of several completions, an episode whose turns share prefixes, and a sequence alone; unequal lengths."""
    draw = random.Random(seed)

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 9) for _ in range(draw.randint(least, most)))

    sequences: list[TokenSequence] = []
    for prefix_group in range(3):
        prompt = ids(3, 14)
        sequences += [TokenSequence(prompt, ids(1, 9), prefix_group) for _ in range(4)]
    history = ids(2, 6)
    for _ in range(3):
        turn = ids(2, 5)
        sequences.append(TokenSequence(history, turn, 3))
        history = (*history, *turn, *ids(1, 4))
    return [*sequences, TokenSequence(ids(1, 1), ids(12, 12), 4)]


def family(kind: str, changes: dict[str, Any]) -> Policy:
    torch.manual_seed(0)
    codec = Codec(train_tokenizer(TEXTS, 300))
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=codec.vocab_size, num_key_value_heads=2, initializer_range=0.2, **{**shape, **ends, **changes}
    )
    return Policy(transformers.AutoModelForCausalLM.from_config(config).eval(), codec)


def adapted(**model: Any) -> Policy:
    """A policy whose adapters, if any, change something."""
    policy = tiny_policy(**model)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    return policy


def on_flex(policy: Policy, block: int = 8) -> Policy:
    policy.runs_on, policy._backend = "flex", None
    assert isinstance(policy.backend, Flex)
    policy.backend.block = block  # so small that a tree of few tokens has blocks of every kind
    return policy


def on_reference(policy: Policy) -> Policy:
    policy.runs_on, policy._backend = "sdpa", None
    assert isinstance(policy.backend, Sdpa)
    return policy


def measured(policy: Policy, sequences: list[TokenSequence], tokens: int) -> tuple[list[torch.Tensor], list[Any]]:
    """Log-probabilities and entropies of all sequences, and the gradient of a random sum of them."""
    generator = torch.Generator().manual_seed(0)
    pulls = [torch.randn(2, len(s.completion_ids), generator=generator) for s in sequences]
    policy.model.zero_grad(set_to_none=True)
    stats: dict[int, torch.Tensor] = {}
    with policy.training():
        for micro in policy.pack(sequences, tokens):
            scored = policy.score(micro, 0.8)
            logp, entropy = spread_out(micro, scored.logp), spread_out(micro, scored.entropy)
            pair = {i: torch.stack([logp[i], entropy[i]]) for i in logp}
            sum((pulls[i].to(pair[i]) * pair[i]).sum() for i in pair).backward()
            stats |= {i: pair[i].detach() for i in pair}
    return [stats[i] for i in range(len(sequences))], [p.grad for p in policy.parameters]


def equal(policy: Policy, tokens: int = 10_000, seed: int = 0) -> None:
    sequences = random_trees(seed)
    want, want_grads = measured(on_reference(policy), sequences, tokens)
    stats, grads = measured(on_flex(policy), sequences, tokens)
    for a, b in zip(stats, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert any(float(g.abs().max()) > 1e-2 for g in want_grads if g is not None)
    for a, b in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "tokens"), [(model, tokens) for model in MODELS for tokens in (40, 10_000)] + [("mixed", 1)]
)
def test_scores_and_gradients_equal_the_reference(model: str, tokens: int) -> None:
    equal(family(*MODELS[model]), tokens, seed=tokens)


@pytest.mark.parametrize(
    "model",
    [{"gradient_checkpointing": True}, {"lora": {"r": 4}}, {"lora": {"r": 4}, "gradient_checkpointing": True}],
    ids=["checkpointing", "lora", "lora-checkpointing"],
)
def test_adapters_and_checkpointing_change_nothing(model: dict[str, Any]) -> None:
    equal(adapted(**model))


@pytest.mark.parametrize("model", ["qwen2", "mixed"])
def test_half_precision_is_as_exact_as_the_reference_in_half_precision(model: str) -> None:
    policy, sequences = family(*MODELS[model]), random_trees(0)
    exact, exact_grads = measured(on_reference(policy), sequences, 10_000)
    policy.compute_dtype = torch.bfloat16
    plain, plain_grads = measured(on_reference(policy), sequences, 10_000)
    stats, grads = measured(on_flex(policy), sequences, 10_000)

    def error(one: list[Any], other: list[Any]) -> float:
        a, b = (torch.cat([x.flatten() for x in side if x is not None]) for side in (one, other))
        return float((a - b).norm() / b.norm())

    assert error(stats, exact) < 2 * error(plain, exact)
    assert error(grads, exact_grads) < 2 * error(plain_grads, exact_grads)


def test_a_bundle_is_one_row_though_its_layers_have_windows() -> None:
    policy = on_flex(family(*MODELS["mixed"]))
    (batch,) = policy.pack([TokenSequence((3,) * 20, (4, i)) for i in range(5, 9)], 1000)
    assert batch.input_ids.numel() == 21
    assert policy.packs_trees
    assert not on_reference(policy).packs_trees


def test_policy_and_reference_share_the_mask_of_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = flex_attention.tree_mask
    monkeypatch.setattr(flex_attention, "tree_mask", lambda *args: made.append(1) or real(*args))
    policy = on_flex(family(*MODELS["mixed"]))
    policy.keep_reference(trained=False)
    made.clear()
    first, second = policy.pack(random_trees(0), 10_000) + policy.pack(random_trees(1), 10_000)
    policy.score(first).logp.sum().backward()
    policy.reference_logp(first)
    assert len(made) == 2  # one for each of two windows
    policy.score(second)
    assert len(made) == 4
    with torch.inference_mode():
        policy.score(second)
    policy.score(second).logp.sum().backward()


@pytest.mark.parametrize("model", ["qwen2", "mixed"])
def test_nothing_inside_a_micro_batch_waits_for_the_gpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = on_flex(family(*MODELS[model]))
    backend: Any = policy.backend
    (batch,) = policy.pack(random_trees(0), 10_000)
    masks = backend._masks_of(policy.base, batch)  # from lists, on the host
    monkeypatch.setattr(backend, "_masks_of", lambda *_: masks)
    monkeypatch.setattr(backend, "kernel", lambda _: lambda query, key, value, *_: query * key.mean() * value.mean())
    with Waits() as waits:
        stats = policy.score(batch)
        (stats.logp.sum() + stats.entropy.sum()).backward()
    assert not waits.names


def test_a_kernel_is_tried_with_its_gradients_though_nobody_else_wants_them() -> None:
    policy = family(*MODELS["mixed"])

    def unlike(query: Any, key: Any, value: Any, mask: Any, scale: float) -> torch.Tensor:
        return by_blocks(query, key, value.detach() + 0 * value, mask, scale)

    with torch.inference_mode():
        assert kernel_gap(by_blocks, by_blocks, policy, 5) == 0.0
        assert kernel_gap(unlike, by_blocks, policy, 5) == pytest.approx(1.0)


def test_a_copy_without_rounding_runs_block_by_block_where_the_kernel_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(policy: Any, windows: Any) -> str | None:
        return "out of shared memory" if policy.compute_dtype == torch.float32 else None

    monkeypatch.setattr("levelhead.policy.backends.flex.backend.kernel_fault", fault)
    monkeypatch.setattr(flex_attention, "compiled", lambda: "compiled")
    config = SimpleNamespace(num_hidden_layers=1)
    backend, stats = Flex(), []
    for dtype in (torch.bfloat16, torch.float32, torch.float32):
        fake: Any = SimpleNamespace(
            device=torch.device("cuda"), compute_dtype=dtype, base=SimpleNamespace(config=config)
        )
        with caplog.at_level("WARNING"):
            stats.append(backend.kernel(fake))
    assert stats == ["compiled", by_blocks, by_blocks]
    assert [r.getMessage() for r in caplog.records] == [
        "attention in float32 runs block by block, slowly: out of shared memory"
    ]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "convolution": ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of kind conv"),
    "soft cap": ("Gemma2", {"head_dim": 16, "sliding_window": 4}, "the model was loaded with eager attention"),
    "eager": ("Llama", {"attn_implementation": "eager"}, "the model was loaded with eager attention"),
}


@pytest.mark.parametrize("why", sorted(REFUSED))
def test_a_model_that_cannot_read_a_packed_tree_is_refused_with_the_reason(why: str) -> None:
    kind, changes, reason = REFUSED[why]
    policy = family(kind, changes)
    before = policy.base.config._attn_implementation
    policy.runs_on = "flex"
    with pytest.raises(InputError, match=rf"model.backend: flex cannot run {kind}\w*: .*{reason}.*; use auto"):
        _ = policy.backend
    assert policy.base.config._attn_implementation == before


def test_the_width_of_a_window_is_that_of_the_config() -> None:
    config = SimpleNamespace(num_hidden_layers=2, sliding_window=7)
    assert layer_windows(config) == (7, 7)
    assert layer_windows(SimpleNamespace(**vars(config), use_sliding_window=False)) == (None, None)
    assert layer_windows(SimpleNamespace(**vars(config), layer_types=MIXED["layer_types"])) == (7, None)
    with pytest.raises(ValueError, match="of unknown width"):
        layer_windows(SimpleNamespace(num_hidden_layers=1, layer_types=["sliding_attention"]))


@pytest.mark.parametrize("broken", ["siblings", "positions"])
def test_a_model_whose_trees_differ_from_the_reference_is_refused(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "siblings":
        ends = flex_attention.subtree_ends
        monkeypatch.setattr(flex_attention, "subtree_ends", lambda *args: torch.full_like(ends(*args), 1 << 20))
    else:
        real = Flex.hidden

        def counted(self: Flex, policy: Any, model: Any, batch: MicroBatch) -> torch.Tensor:
            row = torch.arange(batch.input_ids.shape[1])[None]
            return real(self, policy, model, dataclasses.replace(batch, position_ids=row))

        monkeypatch.setattr(Flex, "hidden", counted)
    policy = family(*MODELS["llama"])
    assert "its outputs differ by" in str(Flex.supports(policy))
    assert policy.base.config._attn_implementation == "sdpa"


def auto(device: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Flex, "supports", classmethod(lambda cls, policy: reason))
    fake: Any = SimpleNamespace(device=torch.device(device), runs_on="auto", base=object())
    return choose_backend(fake).name


def test_a_gpu_runs_on_flex_where_it_can_and_the_log_says_why_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "levelhead.policy.backends"):
        assert auto("cuda", None, monkeypatch) == "flex"
        assert auto("cuda", "the kernel does not compile: no Triton", monkeypatch) == "sdpa"
    assert "runs on backend sdpa (not flex: the kernel does not compile: no Triton)" in caplog.text


def test_a_recipe_can_ask_for_a_backend() -> None:
    assert tiny_policy(backend="flex").backend.name == "flex"
    assert tiny_policy(backend="sdpa").backend.name == "sdpa"
    assert tiny_policy().backend.name == "cpu"


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", ["qwen2", "mixed"])
def test_a_gpu_computes_the_policy_that_the_reference_computes(model: str, dtype: torch.dtype) -> None:
    kind, changes = MODELS[model]
    policies = [family(kind, {**changes, "hidden_size": 64}) for _ in range(2)]
    sides = [Policy(policy.base.cuda(), policy.codec, dtype) for policy in policies]
    assert sides[0].backend.name == "flex"
    stats, want = (measured(policy, random_trees(0), 10_000) for policy in (sides[0], on_reference(sides[1])))
    most = 1e-4 if dtype == torch.float32 else 5e-2
    for a, b in zip(stats, want, strict=True):
        one, other = (torch.cat([x.float().flatten() for x in side if x is not None]) for side in (a, b))
        assert float((one - other).norm() / other.norm()) < most
