"""Decoding with static shapes against decoding with transformers' own cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from levelhead.policy.backends.base import Decoder
from levelhead.policy.backends.flex import cache
from levelhead.policy.backends.flex.backend import Flex, layer_windows
from levelhead.policy.backends.flex.decoder import Graphs, StaticDecoder, Step, captured
from levelhead.policy.backends.sdpa import PaddedDecoder
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer
from small_run import TEXTS, codec_ids, tiny_policy
from waiting import Waits

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "qwen2": ("Qwen2", {}),
    "window": ("Mistral", {"sliding_window": 4}),
    "mixed": ("Qwen2", MIXED),
}


def family(model: str, **changes: Any) -> Policy:
    torch.manual_seed(0)
    kind, own = MODELS[model]
    codec = Codec(train_tokenizer(TEXTS, 300))
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=codec.vocab_size, initializer_range=0.2, **{**shape, **own, **changes}
    )
    return Policy(transformers.AutoModelForCausalLM.from_config(config).eval(), codec)


def prompts() -> list[Prompt]:
    """Of several lengths; two begin alike, one is the beginning of another, and two are the same."""
    ids = codec_ids()
    token_ids = [ids[:4], ids[:9], (*ids[:4], *ids[30:40]), ids[50:53], ids[:4]]
    return [Prompt(f"p{i}", "task", (), tuple(part)) for i, part in enumerate(token_ids)]


class Recorded(TorchDispatchMode):
    """Plays a step again operator by operator, on the very tensors of its first run, as a CUDA graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def play(self) -> None:
        for func, args, kwargs, out in self.calls:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), tree_leaves(out), strict=True):
                if isinstance(new, Tensor) and new.untyped_storage().data_ptr() != old.untyped_storage().data_ptr():
                    old.copy_(new)


class Recordings(Graphs):
    """Captures on a CPU what a CUDA graph would hold."""

    count = 0

    def capture(self, step: Step, device: torch.device) -> Step:
        self.count += 1
        with Waits() as waits:
            step()
        assert not waits.names  # a capture cannot wait
        with Recorded() as recorded:
            result = step()

        def replay() -> Tensor:
            recorded.play()
            return result

        return replay


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few slots and so little room that a short decoding outgrows them."""
    monkeypatch.setattr(cache, "SLOTS", 2)
    monkeypatch.setattr(cache, "ROOM", 2)


def played(decoder: Decoder, rows: int, vocab: int, device: str = "cpu") -> list[Tensor]:
    """All logits of a decoding in which rows leave: prompts are left with unequal numbers, and with none."""
    live = torch.arange(rows, device=device)
    logits = [decoder.start()]
    for position in range(7):
        tokens = (live * 7 + position * 3) % vocab
        if position in (1, 2, 4):
            stay = [i for i, row in enumerate(live.tolist()) if (i + position) % 3 and not 3 <= row < 6]
            keep = torch.tensor(stay, device=device)
            decoder.keep(keep)
            live, tokens = live[keep], tokens[keep]
        logits.append(decoder.step(tokens))
    return logits


def static(policy: Policy, k: int, graphs: Graphs) -> StaticDecoder:
    kernel = Flex().kernel(policy)
    return StaticDecoder(policy, policy.base, layer_windows(policy.base.config), kernel, graphs, prompts(), k, 8)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("model", "k", "graphs"),
    [(model, k, Graphs) for model in MODELS for k in (1, 8)] + [(model, 3, Recordings) for model in ("qwen2", "mixed")],
)
def test_logits_are_those_of_the_usual_cache_while_rows_leave(model: str, k: int, graphs: type[Graphs]) -> None:
    policy = family(model)
    policy.runs_on = "flex"
    assert policy.backend.name == "flex"
    with torch.inference_mode():
        logits, want = (
            played(decoder, 5 * k, policy.codec.vocab_size)
            for decoder in (static(policy, k, graphs()), PaddedDecoder(policy, prompts(), k, 8))
        )
    assert [len(x) for x in logits] == [len(x) for x in want]
    for a, b in zip(logits, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("small")
def test_a_step_is_captured_once_a_size_and_played_for_every_other_token() -> None:
    policy, graphs = family("qwen2"), Recordings()
    policy.runs_on = "flex"
    assert policy.backend.name == "flex"
    with torch.inference_mode():
        decoder = static(policy, 3, graphs)
        decoder.start()
        for _ in range(8):
            decoder.step(torch.arange(15))
    assert graphs.count == 3  # room for 2, 4 and 8 tokens


def test_adapters_and_half_precision_decode_as_the_model_computes() -> None:
    policy = tiny_policy(lora={"r": 4}, backend="flex")
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    assert policy.backend.name == "flex"

    def both() -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            sides = (static(policy, 3, Graphs()), PaddedDecoder(policy, prompts(), 3, 8))
            one, other = (torch.cat(played(decoder, 15, policy.codec.vocab_size)) for decoder in sides)
        return one, other

    exact, want = both()
    torch.testing.assert_close(exact, want, rtol=1e-4, atol=1e-5)
    policy.compute_dtype = torch.bfloat16
    logits, plain = both()
    assert float((logits - exact).norm()) < 2 * float((plain - exact).norm())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("model", ["qwen2", "mixed"])
@pytest.mark.parametrize("k", [1, 8])
def test_the_sampler_draws_the_same_completions_with_their_log_probabilities(model: str, k: int) -> None:
    policy, controls = family(model), Sampling(max_new_tokens=9)
    policy.codec.stop_ids = frozenset(range(3, 40))  # an untrained policy stops early, each row at a time of its own
    policy.runs_on, policy._backend = "sdpa", None
    want = LocalGenerator(policy).sample(prompts(), k, controls, 1)
    policy.runs_on, policy._backend = "flex", None
    groups = LocalGenerator(policy).sample(prompts(), k, controls, 1)
    backend = policy.backend
    assert isinstance(backend, Flex)
    assert backend.decodes is None
    lengths = {len(turn.completion_ids) for turns in want for turn in turns}
    assert len(lengths) >= 3
    for ours, own in zip(groups, want, strict=True):
        for a, b in zip(ours, own, strict=True):
            assert (a.completion_ids, a.finish) == (b.completion_ids, b.finish)
            torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), rtol=1e-4, atol=1e-5)


def test_a_decoder_that_differs_is_not_used_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = family("qwen2")
    policy.runs_on = "flex"
    real = cache.part
    monkeypatch.setattr(cache, "part", lambda q, k, v, scale, seen: real(q, k, v, scale, torch.ones_like(seen)))
    with caplog.at_level("WARNING"):
        assert isinstance(policy.backend.decoders(policy)(prompts(), 2, 4), PaddedDecoder)
    assert "is sampled with transformers' own cache (a decoder of static shapes differs by" in caplog.text


@pytest.mark.parametrize("hidden", [0, 2, 7])
def test_two_parts_are_attention_over_both_though_one_is_hidden(hidden: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, n, 8, generator=generator) for n in (2, 7, 7))
    seen = (torch.arange(7) >= hidden)[None, None]
    own_key, own_value = (torch.randn(3, 4, 8, generator=generator) for _ in range(2))
    (out, log), (other, other_log) = (
        cache.part(query, key, value, 0.3, seen),
        cache.part(query, own_key, own_value, 0.3, torch.ones(1, 1, 4, dtype=torch.bool)),
    )
    mask = torch.cat([seen, torch.ones(1, 1, 4, dtype=torch.bool)], -1)
    want = torch.nn.functional.scaled_dot_product_attention(
        query, torch.cat([key, own_key], 1), torch.cat([value, own_value], 1), attn_mask=mask, scale=0.3
    )
    torch.testing.assert_close(torch.lerp(out, other, torch.sigmoid(other_log - log)), want, rtol=1e-5, atol=1e-6)


def test_a_cache_sums_in_float32_though_autocast_is_on() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    flat, token = (
        (drawn(1, 2, 40, 16), drawn(1, 2, 40, 16)),
        (drawn(8, 4, 1, 16), drawn(8, 2, 1, 16), drawn(8, 2, 1, 16)),
    )
    outputs: list[Tensor] = []
    for rounded in (False, True):
        made = cache.SharedCache(([flat[0]], [flat[1]]), [torch.arange(40)], [0] * 8, [None], 4)
        made.begin()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounded):
            outputs.append(made.attend(0, *token, 0.25))
    assert torch.equal(*outputs)


def test_a_step_that_cannot_be_captured_is_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(step: Step, device: torch.device) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr("levelhead.policy.backends.flex.decoder.captured", fails)
    graphs = Graphs()
    with caplog.at_level("WARNING"):
        step = graphs.capture(lambda: torch.ones(1), torch.device("cuda"))
    assert step().item() == 1.0
    assert "without CUDA graphs" in caplog.text
    assert graphs.refused == "operation not permitted when stream is capturing"


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_captured_step_gives_the_logits_of_the_usual_cache_on_a_gpu(model: str) -> None:
    policy = family(model, hidden_size=64)
    policy = Policy(policy.base.cuda(), policy.codec)
    graphs = Graphs()
    assert policy.backend.name == "flex"
    with torch.inference_mode():
        decoder, plain = static(policy, 3, graphs), PaddedDecoder(policy, prompts(), 3, 8)
        logits, want = (played(one, 15, policy.codec.vocab_size, "cuda") for one in (decoder, plain))
    assert graphs.refused is None
    for a, b in zip(logits, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@gpu
def test_a_captured_step_runs_no_python_when_it_is_played() -> None:
    runs: list[int] = []
    memory = torch.zeros(1, device="cuda")

    def step() -> Tensor:
        runs.append(1)
        return memory.add(1)

    play = captured(step, memory.device)
    before = len(runs)
    memory.fill_(5)
    assert play().item() == 6.0
    assert len(runs) == before
