from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from judged_preflight import setup_with, sound
from levelhead.errors import InputError
from levelhead.recipe.objective import AnyAdvantage, Shaping
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.training.advantages import AdvantageEstimator, GroupAdvantages, make_shapers
from levelhead.training.batch import make_batch
from levelhead.training.prepare import make_objective
from levelhead.training.recompute import Recomputed, TokenStatistics, needs_recompute


def turn(n: int = 2, finish: str = "stop") -> Turn:
    return Turn((1, 2, 3), tuple(range(4, 4 + n)), (-1.0,) * n, (-0.5,) * n, finish)  # type: ignore[arg-type]


def group(rewards: Sequence[float], task: str = "t", *, turns: Sequence[int] = (), **score: Any) -> Group:
    rollouts = []
    for k, reward in enumerate(rewards):
        given = {key: value[k] for key, value in score.items()}
        count = turns[k] if turns else 1
        rollouts.append(Rollout("p", tuple(turn(2 + k) for _ in range(count)), Score(reward, **given)))
    return Group(Prompt("p", task, ()), tuple(rollouts))


def estimator(shaping: dict[str, Any] | None = None, task: str = "t", **grpo: Any) -> AdvantageEstimator:
    recipe = Grpo.model_validate({"group_size": 4, "batch_size": 8, **grpo})
    return AdvantageEstimator(recipe, make_shapers({task: Shaping.model_validate(shaping or {})}, recipe))


def assign(
    made: AdvantageEstimator, groups: Sequence[Group], scores: Recomputed | None = None, coef: float = 0.0
) -> list[GroupAdvantages]:
    return made.assign(groups, scores, {g.prompt.task: coef for g in groups})[0]


def test_groups_without_contrast_are_exactly_zero_and_counted_by_side() -> None:
    groups = [group([0.7] * 4), group([0.1] * 4), group([0.1, 0.1, 0.1, 0.9]), group([-1.0] * 4)]
    group_advantages = assign(estimator(), groups)
    assert [c.has_signal for c in group_advantages] == [False, False, True, False]
    assert all(value == 0.0 for c in group_advantages if not c.has_signal for value in c.values)
    values = make_batch(groups, group_advantages).values
    assert values["frac_reward_zero_std"] == 0.75
    assert values["dead_groups/all_solved"] == 0.25
    assert values["dead_groups/all_failed"] == 0.5
    assert values["live_groups"] == 0.25


def test_contrast_is_that_of_the_rewards_whatever_the_estimator_makes_of_it() -> None:
    groups = [group([0.5] * 4), group([1.0] * 4)]
    group_advantages = assign(estimator(advantage={"kind": "reinforce_pp"}), groups)
    assert all(c.has_signal for c in group_advantages)
    assert make_batch(groups, group_advantages).values["frac_reward_zero_std"] == 1.0


def test_advantages_of_a_task_do_not_depend_on_another_task() -> None:
    made = estimator(advantage={"kind": "batch"})
    mine = [group([0.0, 1.0, 1.0, 0.0]), group([0.0, 0.0, 0.0, 1.0])]
    alone = assign(made, mine)
    beside = assign(made, [*mine, group([0.0, 90.0, 3.0, 7.0], "other")])
    assert alone == beside[:2]


def test_a_turn_weighs_as_much_as_its_share_of_the_episode() -> None:
    groups = [group([0.0, 1.0], turns=[1, 4])]
    batch = make_batch(groups, assign(estimator(group_size=2), groups))
    samples = batch.groups[0]
    assert [s.weight for s in samples] == [1.0, 0.25, 0.25, 0.25, 0.25]
    assert len({s.advantage for s in samples[1:]}) == 1
    assert batch.values["num_turns"] == 2.5


def test_groups_that_lost_rollouts_are_compared_among_what_is_left() -> None:
    groups = [group([0.0, 1.0, 2.0, 3.0]), group([0.0, 1.0]), group([5.0]), Group(Prompt("p", "t", ()), ())]
    group_advantages = assign(estimator(), groups)
    assert [len(c.values) for c in group_advantages] == [4, 2, 1, 0]
    assert [c.has_signal for c in group_advantages] == [True, True, False, False]
    assert group_advantages[1].values == assign(estimator(), [group([0.0, 1.0])])[0].values
    values = make_batch(groups, group_advantages).values
    assert values["reward"] == pytest.approx((6 + 1 + 5) / 7)
    assert make_batch([groups[3]], [group_advantages[3]]).values == {}


def test_pass_at_k_leaves_groups_alone_that_lost_too_many_rollouts() -> None:
    made = estimator(advantage={"kind": "pass_at_k", "k": 3})
    group_advantages = assign(made, [group([0.0, 1.0, 0.0, 0.0]), group([0.0, 1.0, 0.0])])
    assert [c.has_signal for c in group_advantages] == [True, False]


def test_gdpo_sees_the_named_rewards() -> None:
    parts = [{"a": 0.0, "b": 3.0}, {"a": 1.0, "b": 3.0}, {"a": 0.0, "b": 5.0}, {"a": 0.0, "b": 3.0}]
    groups = [group([9.0] * 4, parts=parts)]
    made = estimator(advantage={"kind": "gdpo", "weights": {"a": 0.0}, "batch_norm": False})
    (credit,) = assign(made, groups)
    assert int(np.argmax(credit.values)) == 2
    assert credit.values[0] == credit.values[1]


def test_gdpo_compares_an_answer_by_the_rewards_that_apply_to_it() -> None:
    parts = [{"a": 0.0, "b": 3.0}, {"a": 1.0}, {"a": 0.0, "b": 5.0}, {"a": 0.0, "b": 3.0}]
    made = estimator(advantage={"kind": "gdpo", "weights": {"a": 0.0}, "batch_norm": False, "ddof": 0})
    (credit,) = assign(made, [group([9.0] * 4, parts=parts)])
    assert credit.values[1] == 0
    assert credit.values[2] == pytest.approx(2**0.5, abs=1e-3)  # of three answers, not of four
    assert credit.values[0] == credit.values[3] == pytest.approx(-(2**-0.5), abs=1e-3)


def test_a_judge_that_saw_no_answer_of_a_batch_can_have_a_weight() -> None:
    setup, _ = setup_with(sound)
    advantage = {"kind": "gdpo", "weights": {"judge": 2.0}}
    recipe = Grpo.model_validate({"group_size": 4, "batch_size": 8, "advantage": advantage})
    _, made = make_objective(setup.recipe, recipe, setup.tasks)
    unseen = group([0.0, 1.0, 0.0, 0.0], "fairness", parts=[{"correct": x} for x in (0.0, 1.0, 0.0, 0.0)])
    assert assign(made, [unseen])[0].has_signal
    named = recipe.model_copy(
        update={"advantage": TypeAdapter(AnyAdvantage).validate_python({"kind": "gdpo", "weights": {"jugde": 2.0}})}
    )
    with pytest.raises(InputError, match="no task has a reward called 'jugde'; there are correct, judge"):
        assign(replace(made, config=named), [unseen])


@pytest.mark.parametrize(
    ("advantage", "parts", "message"),
    [
        ({"kind": "gdpo"}, [{}] * 4, "names no rewards"),
        ({"kind": "gdpo", "weights": {"typo": 1.0}}, [{"a": 1.0}] * 4, "no task has a reward called 'typo'"),
        ({"kind": "workflow_aware"}, [{"a": 1.0}] * 4, "'t' reports no 'diversity'"),
    ],
)
def test_an_estimator_that_lacks_what_it_needs_says_what(advantage: dict, parts: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign(estimator(advantage=advantage), [group([0.0] * 4, parts=parts)])


def test_workflow_aware_breaks_ties_by_features() -> None:
    features = [{"features": {"short": x}} for x in (0.1, 0.9, 0.1, 0.1)]
    advantage = {"kind": "workflow_aware", "feature_weights": {"short": 1.0}, "mix": 0.2}
    (tied,) = assign(estimator(advantage=advantage), [group([1.0] * 4, info=features)])
    assert tied.has_signal
    assert int(np.argmax(tied.values)) == 1
    by_parts = [info["features"] for info in features]
    assert assign(estimator(advantage=advantage), [group([1.0] * 4, parts=by_parts)]) == [tied]


def recomputed(groups: Sequence[Group], *, logp: float = -1.0, reference: float | None = None) -> Recomputed:
    return [
        [
            [
                TokenStatistics(
                    (logp,) * len(t.completion_ids),
                    tuple(0.1 * (i + 1) for i in range(len(t.completion_ids))),
                    None if reference is None else (reference,) * len(t.completion_ids),
                )
                for t in r.turns
            ]
            for r in g.rollouts
        ]
        for g in groups
    ]


def test_gtpo_gives_every_token_of_every_turn_its_own_advantage() -> None:
    groups = [group([0.0, 1.0, 1.0, 0.0], turns=[1, 2, 1, 1])]
    made = estimator(advantage={"kind": "gtpo"})
    assert needs_recompute(made.config)
    (credit,) = assign(made, groups, recomputed(groups))
    assert credit.tokens is not None
    assert [len(row) for row in credit.tokens] == [r.length for r in groups[0].rollouts]
    samples = make_batch(groups, [credit], recomputed(groups)).groups[0]
    assert [len(s.advantages or ()) for s in samples] == [len(s.logprobs) for s in samples]
    assert [*(samples[1].advantages or ()), *(samples[2].advantages or ())] == credit.tokens[1]


def test_the_leash_can_be_charged_on_the_reward() -> None:
    groups = [group([1.0, 1.0, 0.0, 0.0])]
    made = estimator(advantage={"kind": "dr_grpo"}, kl={"coef": 0.1, "where": "reward", "estimator": "k1"})
    scores = recomputed(groups, logp=-1.0, reference=-3.0)
    group_advantages, values = made.assign(groups, scores, {"t": 0.1})
    charged = [r.reward - 0.1 * 2.0 * r.length for r in groups[0].rollouts]
    assert group_advantages[0].values == pytest.approx([x - np.mean(charged) for x in charged])
    assert values == pytest.approx({"kl/t": 2.0, "kl": 2.0})
    assert group_advantages[0].shaped == [1.0, 1.0, 0.0, 0.0]


def test_shaping_comes_before_advantages_and_remembers() -> None:
    made = estimator({"zscore": {"decay": 0.5, "tail": 0.0}}, advantage={"kind": "dr_grpo"})
    groups = [group([0.0, 10.0, 20.0, 30.0])]
    (first,) = assign(made, groups)
    assert max(first.shaped) < 5
    assert make_batch(groups, [first]).values["reward_shaped/t"] == pytest.approx(np.mean(first.shaped))
    assert make_batch(groups, [first]).values["reward"] == 15.0
    state = made.state_dict()
    (second,) = assign(made, [group([0.0, 1.0, 2.0, 3.0])])
    fresh = estimator({"zscore": {"decay": 0.5, "tail": 0.0}}, advantage={"kind": "dr_grpo"})
    fresh.load_state_dict(state)
    assert assign(fresh, [group([0.0, 1.0, 2.0, 3.0])]) == [second]


def test_shaping_that_does_not_fit_is_an_input_error() -> None:
    with pytest.raises(InputError, match="tasks: t: shaping: cache must be between 0 and max_length=64"):
        estimator({"length": {"kind": "overlong", "cache": 99}})
    with pytest.raises(InputError, match="gdpo does not look at"):
        estimator({"scale": 2.0}, advantage={"kind": "gdpo"})


def test_only_the_tokens_of_highest_entropy_are_kept() -> None:
    groups = [group([0.0, 1.0, 0.0, 1.0])]
    made = estimator(loss={"top_entropy": 0.25})
    scores = recomputed(groups)
    batch = make_batch(groups, assign(made, groups, scores), scores, 0.25)
    flags = [k for s in batch.groups[0] for k in s.keep or ()]
    entropies = [h for turns in scores[0] for t in turns for h in t.entropies]
    assert sum(flags) >= 0.25 * len(flags)
    assert min(h for h, k in zip(entropies, flags, strict=True) if k) > max(
        h for h, k in zip(entropies, flags, strict=True) if not k
    )


def _paid(paid: Sequence[Sequence[float]], totals: Sequence[float]) -> Group:
    made = group(totals, turns=[len(row) for row in paid])
    rollouts = [replace(r, turn_rewards=tuple(row)) for r, row in zip(made.rollouts, paid, strict=True)]
    return replace(made, rollouts=tuple(rollouts))


def test_credit_by_turn_reaches_the_tokens_of_unequal_episodes() -> None:
    groups = [_paid([[1.0, 0.0], [0.0, 0.0, 0.0], [0.0]], [2.0, 0.0, 0.5]), _paid([[0.5]] * 3, [0.5] * 3)]
    made = estimator(
        group_size=3, batch_size=9, advantage={"kind": "return_to_go", "baseline": "episode"}, loss={"turns": "sum"}
    )
    first, flat = assign(made, groups)
    # Returns 2, 1 and 0, 0, 0 and 0.5; episodes that have ended count 0 at later turns.
    by_turn = [[1.75, 1.0], [-1.25, -0.5, 0.0], [-0.5]]
    for k, row in enumerate(by_turn):
        assert first.tokens is not None
        assert first.tokens[k] == pytest.approx([a for a in row for _ in range(2 + k)])
    assert not flat.has_signal
    samples = make_batch(groups, [first, flat], sum_turns=True).groups[0]
    assert [s.weight for s in samples] == [1.0] * 6
    assert [s.share for s in samples] == pytest.approx([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1.0])
    assert [s.advantages for s in samples][1] == pytest.approx((1.0, 1.0))


def test_what_turns_earn_is_a_metric_over_the_rollouts_that_have_them() -> None:
    groups = [_paid([[1.0, 0.5], [0.0, 0.0, 0.25], [0.5]], [2.0, 0.0, 0.5])]
    values = make_batch(groups, assign(estimator(group_size=3, batch_size=9), groups)).values
    assert [values[f"turn_reward/t/{n}"] for n in (1, 2, 3)] == pytest.approx([0.5, 0.25, 0.25])
    assert not any(
        name.startswith("turn_reward")
        for name in make_batch([group([0.0, 1.0])], assign(estimator(group_size=2), [group([0.0, 1.0])])).values
    )


def test_rewards_of_other_turns_than_a_rollout_has_are_refused() -> None:
    with pytest.raises(ValueError, match="2 turns have 1 rewards"):
        replace(group([0.0], turns=[2]).rollouts[0], turn_rewards=(0.5,))
