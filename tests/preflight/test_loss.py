"""Where the loss comes from is measured on completions that differ in length, token by token."""

from __future__ import annotations

import pytest
import torch

from faults.known import inject
from levelhead.preflight import preflight
from levelhead.preflight.check import Outcome
from levelhead.preflight.context import Context
from levelhead.preflight.listening import listening
from levelhead.preflight.trial import uneven
from preflight.mutations.base import Mutation
from preflight.mutations.loss import WRONG_MASKS, WRONG_SAMPLES
from preflight_setup import setup_of


def completion_only(*settings: str) -> Outcome:
    report = preflight(setup_of(*settings), families=["loss"])
    (check,) = [check for check in report.checks if check.name == "loss/completion-only"]
    return check


def test_rollouts_that_begin_alike_and_win_and_lose_cancel_where_they_are_alike_and_that_is_no_fault() -> None:
    assert completion_only("grpo.sampling.top_k=1").status == "pass"


def test_an_entropy_that_is_no_number_is_stopped_though_nothing_weighs_it() -> None:
    with inject("entropy-of-impossible-tokens"):
        check = completion_only("grpo.entropy.coef=0")
    assert check.status == "fail"
    assert check.message.startswith("the loss of one step is nan (entropy nan")


def test_trees_of_a_model_that_one_mask_for_all_layers_does_not_fit_are_no_fault() -> None:
    setup = setup_of("model.backend=flex")
    setup.policy.shares_prefixes = False  # as with sliding windows, which flex computes over trees all the same
    (check,) = [check for check in preflight(setup, families=["loss"]).checks if check.name == "loss/completion-only"]
    assert check.status == "pass"


def test_two_backward_passes_that_cancel_in_their_sum_are_both_seen() -> None:
    policy = setup_of().policy
    with listening(policy) as listener:
        hidden = policy.base.get_decoder()(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state
        hidden[0, 1].sum().backward(retain_graph=True)
        (-hidden[0, 1].sum()).backward()
    assert list(listener.rows()) == [([1, 2, 3], [False, True, False])]


def test_rollouts_of_a_trial_differ_in_length_and_some_end_with_a_stop_token() -> None:
    context = Context(setup_of())
    try:
        groups = uneven(context.sampled.groups, context.codec.stop_id, 16)
    finally:
        context.close()
    for group in groups:
        turns = [rollout.turns[-1] for rollout in group.rollouts]
        assert len({len(turn.completion_ids) for turn in turns}) == len(turns)
        stopped = [turn.completion_ids[-1] in context.codec.stop_ids for turn in turns]
        assert stopped == [turn.finish == "stop" for turn in turns] == [False, True] * (len(turns) // 2)


CAUSES = [(each, "on the wrong samples") for each in WRONG_SAMPLES] + [
    (each, "the mask of the") for each in WRONG_MASKS
]


@pytest.mark.parametrize(("mutation", "cause"), CAUSES, ids=lambda value: getattr(value, "id", ""))
def test_the_first_message_on_samples_and_masks_names_the_cause(mutation: Mutation, cause: str) -> None:
    with mutation.change():
        first, *_ = preflight(setup_of(*mutation.settings), families=["agreement", "loss", "signs"]).failures
    assert (first.name, cause in first.message) == ("signs/audit", True), first.message
