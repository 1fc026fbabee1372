"""Adapters on embeddings and the output layer train and merge as any other; names that the model lacks are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from levelhead.errors import InputError
from levelhead.policy.load import load_checkpoint, load_policy, load_shape
from levelhead.policy.lora import merged
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from levelhead.rollout.generators.vllm.weights import named_weights
from small_run import TEXTS, TINY, tiny_policy

IDS = torch.tensor([[5, 9, 3, 7, 11, 2]])
ON_ENDS = {
    "output layer": {"target_modules": ["lm_head"]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "both": {"target_modules": ["lm_head", "embed_tokens"]},
    "output layer whole": {"modules_to_save": ["lm_head"]},
    "embedding whole": {"modules_to_save": ["embed_tokens"]},
    "both whole": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "one of each": {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]},
}


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model whose two embeddings are one weight, or two."""
    policy = tiny_policy()
    if not request.param:
        policy.model.config.tie_word_embeddings = False
        policy.model.lm_head.weight = torch.nn.Parameter(policy.model.lm_head.weight.detach().clone())
        policy.model.all_tied_weights_keys = {}
    policy.save(tmp_path / "base")
    return tmp_path / "base"


def step(policy: Policy) -> dict[str, float]:
    """Move every trained weight along its gradient; returns the gradients' norms."""
    sequences = [TokenSequence((5, 9, 3), (7, 11, 2)), TokenSequence((5, 9), (4, 8))]
    for _ in range(2):  # the first leaves A without a gradient, since B is zero
        for batch in policy.pack(sequences, 64):
            policy.score(batch).logp.sum().backward()
        norms = {name: float(p.grad.norm()) for name, p in policy.model.named_parameters() if p.grad is not None}
        with torch.no_grad():
            for parameter in policy.parameters:
                if parameter.grad is not None:
                    parameter.add_(0.2 * parameter.grad.sign())
                    parameter.grad = None
    return norms


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        values: torch.Tensor = model.eval()(IDS).logits
    return values


@pytest.mark.parametrize("ends", ON_ENDS)
def test_an_adapter_on_the_ends_is_trained_saved_and_merged(base: Path, tmp_path: Path, ends: str) -> None:
    section = Model(name=str(base), dtype="float32", lora={"r": 3, **ON_ENDS[ends]})
    policy = load_policy(section)
    before = logits(policy.model)
    norms = step(policy)
    assert len(norms) == len(policy.parameters)
    assert all(norm > 0 for norm in norms.values())
    says = logits(policy.model)
    assert (says - before).abs().max() > 0.1
    sequence = TokenSequence(tuple(IDS[0, :3].tolist()), tuple(IDS[0, 3:].tolist()))
    with torch.no_grad():
        (batch,) = policy.pack([sequence], 64)
        mine = policy.score(batch).logp
    theirs = says.log_softmax(-1)[0, 2:5].gather(-1, IDS[0, 3:, None])[:, 0]
    assert torch.allclose(mine, theirs, atol=1e-4)
    policy.save(tmp_path / "checkpoint")
    again = load_checkpoint(section, tmp_path / "checkpoint")
    assert torch.equal(logits(again.model), says)
    merged(again.model).save_pretrained(str(tmp_path / "merged"))
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")), says, atol=1e-4)


@pytest.mark.parametrize("ends", ON_ENDS)
def test_what_is_sampled_is_what_is_trained_with_an_adapter_on_the_ends(base: Path, ends: str) -> None:
    policy = load_policy(Model(name=str(base), dtype="float32", lora={"r": 3, **ON_ENDS[ends]}))
    step(policy)
    make = policy.backend.decoders(policy)
    from levelhead.records import Prompt

    with torch.no_grad():
        drawn = make([Prompt("0", "", (), (5, 9, 3))], 1, 4).start()
    assert torch.allclose(drawn[0], logits(policy.model)[0, 2], atol=1e-3)


WRONG = {
    "one letter": ({"target_modules": ["q_prj"]}, "target_modules: 'q_prj' is the name of no module", "q_proj"),
    "one of two": ({"target_modules": ["q_proj", "v_prj"]}, "'v_prj'", "v_proj"),
    "of another family": ({"target_modules": ["c_attn"]}, "'c_attn'", "q_proj"),
    "an expression": ({"target_modules": r".*\.q_prj"}, "target_modules: '.*", "q_proj"),
    "no expression": ({"target_modules": "*.q_proj"}, "no regular expression", ""),
    "a block": ({"target_modules": ["self_attn"]}, "'self_attn' is a Qwen2Attention", "q_proj"),
    "a norm": ({"target_modules": ["input_layernorm"]}, "'input_layernorm' is a Qwen2RMSNorm", "q_proj"),
    "saved": ({"modules_to_save": ["lm_haed"]}, "modules_to_save: 'lm_haed'", "lm_head"),
    "saved, half a name": ({"modules_to_save": ["head"]}, "modules_to_save: 'head'", "lm_head"),
    "saved, without weights": ({"modules_to_save": ["act_fn"]}, "'act_fn' is a SiLU", "gate_proj"),
}


@pytest.mark.parametrize("case", WRONG)
def test_names_that_the_model_lacks_are_refused_with_the_nearest_before_any_weight_is_loaded(case: str) -> None:
    keys, said, near = WRONG[case]
    section = Model(preset="tiny", tiny=TINY, lora=keys)
    for load in (
        lambda: load_policy(section, texts=TEXTS, load="shape"),
        lambda: load_policy(section, texts=TEXTS),
        lambda: load_shape(section, "cpu", torch.float32),
    ):
        with pytest.raises(InputError) as seen:
            load()
        assert str(seen.value).startswith("model.lora.")
        assert said in str(seen.value)
        assert near in str(seen.value)
        assert "\n" not in str(seen.value)


def test_a_server_of_tied_embeddings_is_not_sent_two() -> None:
    policy = tiny_policy(lora={"r": 2, "target_modules": ["lm_head"]})
    with pytest.raises(InputError, match="tied embeddings"):
        list(named_weights(policy))
