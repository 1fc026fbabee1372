"""Models with convolution layers, whose state cannot branch: what was drawn is what is trained on."""

from __future__ import annotations

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from levelhead.policy.load import wrap
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import TrainSampling
from levelhead.records import Prompt
from levelhead.rollout.generators.local import LocalGenerator
from small_run import alone, spread_out, tiny_policy

LAYERS = ["conv", "conv", "full_attention", "conv"]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """LFM2's architecture in small."""
    tokenizer = tiny_policy().codec.tokenizer
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=2,
        num_key_value_heads=1,
        conv_L_cache=3,
        layer_types=LAYERS,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return wrap(Lfm2ForCausalLM(config), tokenizer)


def test_drawn_and_trained_log_probabilities_agree(policy: Policy) -> None:
    texts = ("question 1?", "question 2: what is the number 2? answer:", "the number is 3. the number is 4.")
    prompts = [
        Prompt(text, "t", ({"role": "user", "content": text},)).with_tokens(
            policy.codec.render([{"role": "user", "content": text}])
        )
        for text in texts
    ]
    assert len({len(prompt.token_ids) for prompt in prompts}) == 3
    drawn = LocalGenerator(policy).sample(prompts, 3, TrainSampling(max_new_tokens=8), seed=0)
    sequences = [
        TokenSequence(turn.context_ids, turn.completion_ids, prefix_group)
        for prefix_group, turns in enumerate(drawn)
        for turn in turns
    ]
    behind = [turn.logprobs for turns in drawn for turn in turns]
    with torch.no_grad():
        for micro in policy.pack(sequences, 4096):
            for index, logp in spread_out(micro, policy.score(micro).logp).items():
                assert logp.tolist() == pytest.approx(behind[index], abs=1e-4)
                plain, _ = alone(policy, sequences[index].context_ids, sequences[index].completion_ids)
                assert logp.tolist() == pytest.approx(plain.tolist(), abs=1e-4)
