"""Which backend runs which model, and that a policy's modules run nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from levelhead.policy.backends.cpu import attention
from levelhead.policy.backends.sdpa import Sdpa
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from oracle import plain
from small_run import TEXTS, codec_ids, tiny_policy


def sequences() -> list[TokenSequence]:
    ids = codec_ids()
    return [TokenSequence(ids[:6], ids[6:9]), TokenSequence(ids[:6], ids[20:25])]


def windowed() -> Policy:
    codec = Codec(train_tokenizer(TEXTS, 300))
    config = transformers.MistralConfig(
        vocab_size=codec.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=4,
    )  # fmt: skip
    return Policy(transformers.MistralForCausalLM(config), codec)


def test_a_plain_model_on_a_cpu_runs_on_trees_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "levelhead.policy.backends"):
        assert tiny_policy().backend.name == "cpu"
    assert "runs on backend cpu" in caplog.text


def test_a_model_that_trees_do_not_fit_runs_padded_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "levelhead.policy.backends"):
        assert windowed().backend.name == "sdpa"
    assert "runs on backend sdpa (not cpu: some layers are not full attention)" in caplog.text


def test_a_torch_without_the_private_operators_runs_padded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> Any:
        raise AttributeError("no _scaled_dot_product_flash_attention_for_cpu")

    monkeypatch.setattr(attention, "kernels", gone)
    policy = tiny_policy()
    with caplog.at_level("WARNING"):
        assert policy.backend.name == "sdpa"
    assert "no _scaled_dot_product_flash_attention_for_cpu" in caplog.text
    assert policy.base.config._attn_implementation == "sdpa"


def test_trees_are_refused_by_the_backend_that_cannot_compute_them() -> None:
    policy = tiny_policy()
    (batch,) = policy.pack(sequences(), 1000)
    assert batch.nodes
    with pytest.raises(ValueError, match="pack it with its policy"):
        Sdpa().hidden(policy, policy.base, batch)


@contextmanager
def counted(model: nn.Module) -> Iterator[dict[str, int]]:
    """Count the passes through a model's decoder, and those that :meth:`Policy.forward` runs."""
    counts = {"decoder": 0, "forward": 0}
    decoder: Any = model.get_decoder()  # type: ignore[operator]

    def passed(*_: Any) -> None:
        counts["decoder"] += 1

    real = Policy.forward

    def forward(self: Policy, module: nn.Module, **inputs: Any) -> Any:
        counts["forward"] += 1
        return real(self, module, **inputs)

    handle = decoder.register_forward_pre_hook(passed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "forward", forward)
        yield counts
    handle.remove()


@pytest.mark.parametrize("padded", [False, True])
def test_every_pass_through_the_modules_goes_through_one_method(padded: bool) -> None:
    policy = tiny_policy(lora={"r": 2})
    policy.keep_reference(trained=False)
    with counted(policy.base) as counts:
        if padded:
            policy._backend = Sdpa()
        for batch in policy.pack(sequences(), 1000):
            policy.score(batch)
            policy.reference_logp(batch)
        LocalGenerator(policy).sample([Prompt("0", "task", (), codec_ids()[:6])], 2, Sampling(max_new_tokens=3), 1)
        plain.logprobs(policy, codec_ids()[:6], codec_ids()[6:9])
    assert counts["decoder"] == counts["forward"] >= 5


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_an_untrained_policy_is_its_reference_to_the_bit_in_half_precision_too(lora: dict[str, int] | None) -> None:
    policy = tiny_policy(lora=lora)
    policy.compute_dtype = torch.bfloat16
    policy.keep_reference(trained=False)
    for batch in policy.pack(sequences(), 1000):
        assert torch.equal(policy.score(batch).logp, policy.reference_logp(batch))
