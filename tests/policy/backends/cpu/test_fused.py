"""A model's weights without its modules, against the model: logits, draws, and what becomes of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from levelhead.policy.backends.cpu import backend
from levelhead.policy.backends.cpu import fused as fused_module
from levelhead.policy.backends.cpu.backend import Cpu, SharedDecoder
from levelhead.policy.backends.cpu.fused import FusedForward
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from small_run import TEXTS, codec_ids, spread_out, tiny_policy

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {"sliding_window": None, "head_dim": 16},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 16, "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}},
}


def random_policy(family: str, **config: Any) -> Policy:
    """Weights large enough that attention is far from even, biases and norms included."""
    codec = Codec(train_tokenizer(TEXTS, 300))
    config = {"num_key_value_heads": 2, "vocab_size": codec.vocab_size, "pad_token_id": 0, **SHAPE, **config}
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}Config")(bos_token_id=1, eos_token_id=2, **config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.eval()
    return Policy(model, codec)


def lora_policy(**model: Any) -> Policy:
    policy = tiny_policy(lora={"r": 4}, **model)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return policy


def find_fused(policy: Policy) -> FusedForward | None:
    assert isinstance(policy.backend, Cpu)
    return policy.backend.fused_forward(policy)


def prompts() -> list[Prompt]:
    ids = codec_ids()
    return [Prompt(f"p{i}", "task", (), part) for i, part in enumerate([ids[:4], ids[:9], ids[40:63], ids[50:53]])]


@torch.inference_mode()
def played(policy: Policy, *, fast: bool, k: int = 3) -> list[torch.Tensor]:
    """Logits of a decoding in which some rows leave."""
    fused_forward = find_fused(policy)
    assert fused_forward is not None
    decoder = SharedDecoder(policy, fused_forward if fast else None, prompts(), k, 8)
    logits = [decoder.start()]
    tokens = torch.tensor(codec_ids()[20:32]).repeat(k)[: 4 * k]
    for position in range(5):
        if position == 2:
            decoder.keep(torch.tensor([0, 2, 3, 4, 10]))
            tokens = tokens[:5]
        logits.append(decoder.step(tokens + position))
    return logits


def close(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_are_those_of_the_modules(family: str) -> None:
    policy = random_policy(family, **FAMILIES[family])
    close(played(policy, fast=True), played(policy, fast=False))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 4.0, 8.0],
            "original_max_position_embeddings": 16,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_positions_that_change_with_the_longest_one_are_followed(rope: dict[str, Any]) -> None:
    policy = random_policy("Llama", rope_parameters={"rope_theta": 1e4, **rope}, max_position_embeddings=64)
    close(played(policy, fast=True), played(policy, fast=False))


def test_positions_beyond_the_table_extend_it() -> None:
    policy = random_policy("Qwen3", **FAMILIES["Qwen3"])
    fused_forward = find_fused(policy)
    assert fused_forward is not None
    for positions in (torch.tensor([0, 3]), torch.tensor([700, 2]), torch.tensor([955, 956])):
        cos, turn = fused_forward._rotary(positions)
        wanted, sine = policy.base.get_decoder().rotary_emb(fused_forward._embedding, positions[None])
        root = fused_forward._layers[0].scale ** 0.5  # of the scale on products of queries and keys
        assert torch.equal(cos, wanted[0] * root)
        assert torch.equal(turn.abs(), sine[0].abs() * root)


@pytest.fixture(params=["packed", "aside", "apart"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How products are computed: from packed weights; with two threads' layout; from several weights."""
    threads = torch.get_num_threads()
    if request.param == "packed":
        monkeypatch.setattr(fused_module, "_LARGE", 0)
    else:
        monkeypatch.setattr(fused_module, "_SMALL", 0)
        torch.set_num_threads(2)
    yield request.param
    torch.set_num_threads(threads)


@pytest.mark.parametrize("k", [3, 40])
@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_every_way_of_computing_products_gives_the_same_logits(way: str, family: str, k: int) -> None:
    policy = random_policy(family, **FAMILIES[family])
    if way == "apart":
        policy.merge_bytes = 0
    fused_forward = find_fused(policy)
    assert fused_forward is not None
    assert (fused_forward.copied > 0) == (way != "apart")
    assert isinstance(fused_forward._head, fused_module._Packed) == (way == "packed")
    close(played(policy, fast=True, k=k), played(policy, fast=False, k=k))


def test_a_merged_adapter_gives_the_logits_of_one_that_is_not() -> None:
    policy = lora_policy()
    with_adapter = played(policy, fast=True)
    close(with_adapter, played(policy, fast=False))
    with policy.model.disable_adapter():
        assert (played(policy, fast=True)[-1] - with_adapter[-1]).abs().max() > 0.1


def test_what_is_drawn_from_merged_weights_is_scored_alike_by_the_trainer() -> None:
    policy = lora_policy()
    turns = LocalGenerator(policy).sample(prompts(), 3, Sampling(max_new_tokens=16), seed=1)
    flat = [turn for group in turns for turn in group]
    sequences = [TokenSequence(t.context_ids, t.completion_ids, i // 3) for i, t in enumerate(flat)]
    for micro in policy.pack(sequences, 10_000):
        for index, logp in spread_out(micro, policy.score(micro).logp.detach()).items():
            assert flat[index].logprobs == pytest.approx(logp.tolist(), abs=1e-4)


def test_merging_leaves_every_weight_and_module_as_it_was() -> None:
    policy = lora_policy()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    storages = [value.data_ptr() for value in policy.model.state_dict().values()]
    forwards = [module.forward for module in policy.model.modules()]
    LocalGenerator(policy).sample(prompts(), 2, Sampling(max_new_tokens=4), seed=1)
    fused_forward = find_fused(policy)
    assert fused_forward is not None
    assert fused_forward.copied > 0
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
    assert storages == [value.data_ptr() for value in policy.model.state_dict().values()]
    assert forwards == [module.forward for module in policy.model.modules()]
    assert not {weight.data_ptr() for layer in fused_forward._layers for weight in layer.out.weights} & set(storages)


def test_the_newest_weights_are_sampled() -> None:
    policy = lora_policy()
    first = played(policy, fast=True)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.mul_(1.5)
    assert (played(policy, fast=True)[-1] - first[-1]).abs().max() > 0.1
    close(played(policy, fast=True), played(policy, fast=False))


def test_an_adapter_whose_merged_weights_are_too_large_stays_unmerged() -> None:
    policy = lora_policy()
    policy.merge_bytes = 1000
    assert find_fused(policy) is None
    assert len(LocalGenerator(policy).sample(prompts(), 2, Sampling(max_new_tokens=4), seed=1)) == 4


@pytest.mark.parametrize(("family", "config"), [("Granite", {}), ("Gemma", {"head_dim": 8}), ("Olmo2", {})])
def test_another_architecture_samples_through_its_modules(family: str, config: dict[str, Any]) -> None:
    assert find_fused(random_policy(family, **config)) is None


def test_layers_of_different_scales_sample_through_their_modules() -> None:
    policy = random_policy("Llama", **FAMILIES["Llama"])
    policy.base.get_decoder().layers[-1].self_attn.scaling *= 2
    assert fused_module.make_fused(policy) is None


def test_a_model_that_differs_from_its_stepper_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    policy = random_policy("Llama")
    layer: Any = policy.base.get_decoder().layers[1]
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs) * 1.001
    assert find_fused(policy) is None
    assert "its own modules" in caplog.text
    assert isinstance(policy.backend, Cpu)
    assert policy.backend.steps is False


def test_a_hook_of_the_users_is_called_while_sampling() -> None:
    policy = tiny_policy()
    assert find_fused(policy) is not None
    seen: list[int] = []
    handle = policy.base.get_decoder().layers[0].register_forward_hook(lambda *_: seen.append(1))
    LocalGenerator(policy).sample(prompts(), 2, Sampling(max_new_tokens=4, min_new_tokens=3), seed=1)
    assert len(seen) == 4
    handle.remove()
    assert find_fused(policy) is not None


def test_gradient_checkpointing_does_not_stand_in_the_way() -> None:
    assert find_fused(lora_policy(gradient_checkpointing=True)) is not None


def test_half_precision_samples_through_the_modules() -> None:
    policy = lora_policy()
    policy.compute_dtype = torch.bfloat16
    assert find_fused(policy) is None


def test_equality_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    assert find_fused(policy) is not None
    monkeypatch.setattr(backend, "SharedDecoder", None)
    assert find_fused(policy) is not None
