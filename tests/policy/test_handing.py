"""A model is filled unit by unit, ties and types kept; processes that build different models say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from levelhead.errors import InputError
from levelhead.policy import handing
from levelhead.policy.handing import Handing, skeleton
from small_run import tiny_policy

CPU = torch.device("cpu")


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_a_skeleton_has_no_memory_for_weights_and_is_filled_with_those_of_the_model(lora: Any) -> None:
    whole = tiny_policy(lora=lora).base
    bare = skeleton(whole)
    assert {p.device.type for p in bare.parameters()} == {"meta"}
    assert all(torch.equal(a, b) for a, b in zip(whole.buffers(), bare.buffers(), strict=True))
    given: dict[str, torch.Tensor] = dict(whole.named_parameters())
    filling = Handing(bare, given, CPU, handed_out=False)
    for layer in bare.get_decoder().layers:
        filling.fill(layer)
        assert next(layer.parameters()).device == CPU
    assert bare.get_input_embeddings().weight.device.type == "meta", "a unit at a time"
    filling.fill(bare)
    assert not given, "what has been taken is let go of"
    names = dict(bare.named_parameters())
    assert names.keys() == dict(whole.named_parameters()).keys()
    for name, weight in whole.named_parameters():
        assert torch.equal(names[name], weight)
        assert names[name].requires_grad == weight.requires_grad
    assert bare.get_output_embeddings().weight is bare.get_input_embeddings().weight


def test_what_is_not_given_has_room() -> None:
    bare = skeleton(tiny_policy().base)
    Handing(bare, {}, CPU, handed_out=False).fill(bare)
    assert {p.device for p in bare.parameters()} == {CPU}


def handed(monkeypatch: pytest.MonkeyPatch, rank: int, sent: list[torch.Tensor], other: Any = None) -> None:
    """One of two processes; the first notes what it sends, and the other gets that."""

    def gather(parts: list[Any], own: Any) -> None:
        parts[:] = [own, own if other is None else other]

    def broadcast(tensor: torch.Tensor, src: int) -> None:
        assert src == 0
        if rank == 0:
            sent.append(tensor.clone())
        else:
            tensor.copy_(sent.pop(0))

    monkeypatch.setattr(handing.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(handing.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(handing.dist, "all_gather_object", gather)
    monkeypatch.setattr(handing.dist, "broadcast", broadcast)


def test_the_first_process_hands_out_what_the_others_build_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sent = tiny_policy().base, []
    bare = skeleton(whole)
    for buffer in bare.buffers():
        buffer.zero_()
    for rank, model in ((0, whole), (1, bare)):
        handed(monkeypatch, rank, sent)
        filling = Handing(model, dict(model.named_parameters()), CPU, handed_out=True)
        filling.fill(model)
        handing.hand_out_rest(model, CPU)
    assert not sent
    for one, other in zip([*whole.parameters(), *whole.buffers()], [*bare.parameters(), *bare.buffers()], strict=True):
        assert torch.equal(one, other)


def test_processes_that_build_different_models_say_which_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_policy().base
    odd = {"model.embed_tokens.weight": ((299, 32), torch.float32)}
    handed(monkeypatch, 0, [], other=odd)
    with pytest.raises(InputError, match=r"process 1 builds another model than the first \(model\.embed_tokens"):
        Handing(model, dict(model.named_parameters()), CPU, handed_out=True)
