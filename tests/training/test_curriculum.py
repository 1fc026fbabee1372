from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.errors import InputError
from levelhead.recipe.training import Grpo, Learnability
from levelhead.records import Group, Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.training.answers import success
from levelhead.training.curriculum import LearnabilityStream, has_contrast, make_stream
from levelhead.training.stream import PromptStream

K = 4


class Pages(SingleTurnTask):
    """A task of several kinds of problem."""

    def __init__(self, name: str = "web", items: int = 6, **strata: float) -> None:
        self.name, self.items = name, items
        self._strata = strata or {"easy": 0.5, "hard": 0.5}

    @property
    def shares(self) -> Mapping[str, float]:
        return self._strata

    def kind_of(self, prompt: Prompt) -> str:
        return prompt.id.split("-")[0]

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        ids = [f"{kind}-{i}" for kind in self._strata for i in range(self.items)]
        for i in np.random.default_rng(seed).permutation(len(ids)):
            yield Prompt(ids[i], self.name, ())

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)


class Plain(SingleTurnTask):
    def __init__(self, name: str, n: int = 5) -> None:
        self.name, self.n = name, n

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        yield from (Prompt(str(i), self.name, ()) for i in range(self.n))

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)


def group(prompt: Prompt, wins: int, k: int = K) -> Group:
    rollouts = [Rollout(prompt.id, (), Score(float(i < wins), {"success": float(i < wins)})) for i in range(k)]
    return Group(prompt, tuple(rollouts))


def stream(*tasks: SingleTurnTask, seed: int = 0, **recipe: float) -> LearnabilityStream:
    members = list(tasks) or [Pages()]
    return LearnabilityStream(members, [1.0] * len(members), seed, Learnability(kind="learnability", **recipe))


def teach(one: LearnabilityStream, wins: Mapping[str, int], steps: int = 5, start: int = 1) -> None:
    """Let every item of each stratum succeed so many times out of K at each of some steps."""
    for step in range(start, start + steps):
        prompts = [Prompt(f"{kind}-{i}", "web", ()) for kind in wins for i in range(6)]
        one.learn([group(prompt, wins[prompt.id.split("-")[0]]) for prompt in prompts], step)


def kinds(prompts: list[Prompt]) -> Counter[str]:
    return Counter(prompt.id.split("-")[0] for prompt in prompts)


def test_before_anything_is_known_strata_have_their_shares() -> None:
    drawn = stream(Pages(easy=0.75, hard=0.25)).take(8)
    assert kinds(drawn) == {"easy": 6, "hard": 2}


@pytest.mark.parametrize("wins", [0, K])
def test_what_is_solved_or_hopeless_fades_to_the_floor(wins: int) -> None:
    one = stream(floor=0.2, half_life=1000.0)
    teach(one, {"easy": wins, "hard": K // 2}, steps=30)
    shares = one.metrics()
    assert shares["curriculum/share/web/easy"] == pytest.approx(0.2 / 1.2, abs=0.01)
    assert one.metrics()["curriculum/success/web/easy"] == pytest.approx(wins / K, abs=0.01)
    counts: Counter[str] = Counter()
    for _ in range(100):
        counts += kinds(one.take(4))
    assert counts["easy"] / 400 == pytest.approx(0.2 / 1.2, abs=0.02)


def test_shares_are_in_proportion_to_p_times_one_minus_p() -> None:
    one = stream(Pages(a=0.5, b=0.5), floor=0.01, half_life=1e6)
    teach(one, {"a": 1, "b": 2}, steps=200)
    shares = one.metrics()
    ratio = shares["curriculum/share/web/a"] / shares["curriculum/share/web/b"]
    assert ratio == pytest.approx(0.25 * 0.75 / 0.25, rel=0.01)


def test_what_has_faded_comes_back_when_it_is_forgotten() -> None:
    one = stream(half_life=2.0)
    teach(one, {"easy": K, "hard": 2}, steps=5)
    before = one.metrics()["curriculum/share/web/easy"]
    teach(one, {"hard": 2}, steps=40, start=6)
    assert one.metrics()["curriculum/share/web/easy"] > 2 * before


def test_recent_outcomes_outweigh_old_ones() -> None:
    one = stream(half_life=2.0)
    teach(one, {"easy": 0}, steps=20)
    teach(one, {"easy": K}, steps=10, start=21)
    assert one.metrics()["curriculum/success/web/easy"] > 0.9


def test_items_that_teach_are_drawn_more_often_than_solved_ones() -> None:
    one = stream(Pages(items=2, web=1.0), floor=0.1, half_life=1e6)
    for step in range(1, 20):
        one.learn([group(Prompt("web-0", "web", ()), K), group(Prompt("web-1", "web", ()), K // 2)], step)
    drawn = Counter(one.take(1)[0].id for _ in range(300))
    assert drawn["web-1"] > 3 * drawn["web-0"] > 0


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 30), seed=st.integers(0, 5))
def test_no_item_comes_twice_while_others_are_left(n: int, seed: int) -> None:
    counts = Counter(prompt.id for prompt in stream(Pages(items=5, a=1.0), seed=seed).take(n))
    assert sum(counts.values()) == n
    assert max(counts.values()) - (min(counts.values()) if len(counts) == 5 else 0) <= 1


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 40), share=st.floats(0.05, 0.95), seed=st.integers(0, 9))
def test_strata_have_their_share_within_one_prompt(n: int, share: float, seed: int) -> None:
    counts = kinds(stream(Pages(a=share, b=1 - share), seed=seed).take(n))
    assert abs(counts["a"] - share * n) < 1 + 1e-9


@settings(deadline=None, max_examples=30)
@given(cut=st.integers(0, 5), seed=st.integers(0, 3))
def test_a_resumed_stream_goes_on_as_if_it_had_never_stopped(cut: int, seed: int) -> None:
    def run(one: LearnabilityStream, first: int, last: int) -> list[list[Prompt]]:
        taken = []
        for step in range(first, last + 1):
            taken.append(one.take(3))
            one.learn([group(p, (len(p.id) + step + int(p.id[-1])) % (K + 1)) for p in taken[-1]], step)
        return taken

    whole, part = stream(seed=seed), stream(seed=seed)
    wanted = run(whole, 1, 6)
    before = run(part, 1, cut)
    resumed = stream(seed=seed)
    resumed.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert before + run(resumed, cut + 1, 6) == wanted
    assert resumed.state_dict() == whole.state_dict()
    assert resumed.metrics() == whole.metrics()


def test_a_stream_that_goes_back_forgets_what_came_after() -> None:
    one = stream()
    before = one.state_dict()
    one.learn([group(prompt, 2) for prompt in one.take(4)], 1)
    one.load_state_dict(before)
    assert one.state_dict() == before


def test_another_seed_draws_others() -> None:
    assert [stream(seed=0).take(4) for _ in range(2)] == [stream(seed=0).take(4)] * 2
    assert stream(seed=0).take(4) != stream(seed=1).take(4)


def test_tasks_without_strata_are_drawn_by_their_weights() -> None:
    both = [Plain("one"), Plain("two")]
    drawn = LearnabilityStream(both, [3.0, 1.0], 0, Learnability(kind="learnability")).take(8)
    assert Counter(prompt.task for prompt in drawn) == {"one": 6, "two": 2}


def test_a_state_of_other_tasks_or_another_kind_is_refused() -> None:
    for state in (stream(Pages("other")).state_dict(), PromptStream([Pages()], [1.0], 0).state_dict()):
        with pytest.raises(InputError, match=r"another grpo\.curriculum"):
            stream().load_state_dict(state)
    with pytest.raises(InputError, match=r"another grpo\.curriculum"):
        PromptStream([Pages()], [1.0], 0).load_state_dict(stream().state_dict())


def test_a_task_without_prompts_is_named() -> None:
    with pytest.raises(InputError, match="'none' has no training prompts"):
        stream(Plain("none", 0))


def test_the_recipe_chooses_the_stream() -> None:
    assert isinstance(make_stream([Pages()], [1.0], 0), PromptStream)
    assert isinstance(make_stream([Pages()], [1.0], 0, Learnability(kind="learnability")), LearnabilityStream)


def test_success_is_the_part_of_that_name_or_a_reward_of_half() -> None:
    def scored(total: float, **parts: float) -> Rollout:
        return Rollout("0", (), Score(total, parts))

    assert success(scored(0.2, success=1.0))
    assert not success(scored(0.9, success=0.0))
    assert success(scored(0.5))
    assert not success(scored(-1.0))


def test_contrast_is_a_difference_of_rewards() -> None:
    prompt = Prompt("0", "web", ())
    assert [has_contrast(group(prompt, wins), Grpo()) for wins in range(K + 1)] == [False, True, True, True, False]
