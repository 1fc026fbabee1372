"""Mutations of what the checks of rewards, judges and walls guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from judged_preflight import Verdict, setup_with, sound
from levelhead.preflight import preflight
from levelhead.preflight.check import Outcome, Status
from levelhead.preflight.checks.advice import CreditByTurn
from levelhead.preflight.checks.wall import Wall
from levelhead.preflight.context import Context as PreflightContext
from levelhead.recipe.tasks import Workflow
from levelhead.tasks.sandbox import run
from levelhead.training.collect import Collector
from preflight.mutations.base import Checks, Context, Mutation, fault, patch
from preflight.test_recipes import several_turns
from preflight_setup import closeness

KINDS = ("the oracle's answer", "an empty answer", "nonsense")


SOUND_TURNS = ("grpo.advantage.kind=return_to_go", "grpo.loss.turns=sum")


def _turns(*settings: str) -> Checks:
    """The check on a task of several turns."""

    def checks() -> Sequence[Any]:
        context = PreflightContext(several_turns(*settings))
        return list(CreditByTurn().run(context))

    return checks


def text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def not_finite(completions: Sequence[Any], **_: Any) -> list[float]:
    return [math.nan for _ in completions]


def too_few(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0]


def raises(completions: Sequence[Any], **_: Any) -> list[float]:
    raise KeyError("label")


def on_known(kind: str) -> Callable[..., list[float]]:
    """A reward that is not finite on one kind of known answer, and sound on what is drawn."""

    def reward(prompts: Any, completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float]:
        values = closeness(prompts, completions, answer, **columns)
        odd = {"oracle": list(answer), "empty": [""] * len(values), "nonsense": ["lorem ipsum 12 dolor"] * len(values)}
        return [math.nan if text(c) == o else value for c, o, value in zip(completions, odd[kind], values, strict=True)]

    return reward


def fails_on(share: float) -> Callable[..., list[float]]:
    """A reward that raises on a share of the answers, by their length."""

    def reward(completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float | None]:
        marks = [sum(map(ord, text(c))) % 100 / 100 for c in completions]
        values = closeness([], completions, answer)
        return [math.nan if mark < share else value for mark, value in zip(marks, values, strict=True)]

    return reward


def constant(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0 for _ in completions]


def upside_down(**columns: Any) -> list[float]:
    return [-value for value in closeness(**columns)]


def saying_nothing(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0 if not text(c) else 0.5 for c in completions]


def nonsense(completions: Sequence[Any], **_: Any) -> list[float]:
    return [2.0 if "lorem" in text(c) else float("It is" in text(c)) for c in completions]


def exact(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(text(c) == a) for c, a in zip(completions, answer, strict=True)]


def yes_or_no(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(text(c).strip() == a) for c, a in zip(completions, answer, strict=True)]


def mostly(word: str, other: str, every: int) -> list[dict[str, str]]:
    return [{"prompt": f"Question {i}?", "answer": other if i % every == 0 else word} for i in range(120)]


def _reordered(change: Callable[[list[Any]], list[Any]]) -> Callable[[], Context]:
    """Hand the scores of a group to other rollouts."""

    def make(real: Any) -> Any:
        async def answers(self: Any, *args: Any) -> Any:
            groups = []
            for group in await real(self, *args):
                scores = change([rollout.score for rollout in group.rollouts])
                pairs = zip(group.rollouts, scores, strict=True)
                groups.append(replace(group, rollouts=tuple(r.scored(s) for r, s in pairs)))
            return groups

        return answers

    return patch(Collector, "_answers", make)


def _of_the_next_group(real: Any) -> Any:
    async def answers(self: Any, *args: Any) -> Any:
        groups = await real(self, *args)
        turned = [*groups[1:], *groups[:1]]
        return [
            replace(g, rollouts=tuple(r.scored(o.score) for r, o in zip(g.rollouts, other.rollouts, strict=True)))
            for g, other in zip(groups, turned, strict=True)
        ]

    return answers


def _walls(isolation: str = "required") -> Checks:
    section = Workflow(
        kind="workflow",
        executor={"kind": "endpoint", "base_url": "http://model.test/v1", "model": "m"},  # type: ignore[arg-type]
        sandbox={"isolation": isolation},  # type: ignore[arg-type]
    )

    def checks() -> Sequence[Outcome]:
        run._probe.cache_clear()
        context = SimpleNamespace(recipe=SimpleNamespace(tasks=[section]))
        try:
            return list(Wall().run(cast("PreflightContext", context)))
        finally:
            run._probe.cache_clear()

    return checks


def _wall(**result: Any) -> Callable[[], Context]:
    made = run.ProgramResult(**{"status": "ok", "network": "filter"} | result)
    return patch(run, "_run", lambda _: lambda *_args: made)


def _walled() -> Sequence[Outcome]:
    with _wall(wall="bubblewrap")():
        return _walls()()


def judged(verdict: Verdict, status: int = 200) -> Checks:
    """The checks of a judge that is a function of the perfect answer and the answer."""
    return lambda: preflight(setup_with(verdict, status)[0], families=("judges",)).checks


_WALLS: tuple[tuple[str, Callable[[], Context], str, Status], ...] = (
    ("programs are refused", _wall(status="refused", note="no wall holds"), "required", "fail"),
    ("no kind of wall is available", patch(run, "_available", lambda _: lambda _walls: ()), "required", "fail"),
    ("the recipe wants none", _wall(wall="none", note="no Landlock"), "none", "warn"),
)

MUTATIONS = (
    *(
        Mutation("rewards/finite", what, reward=reward)
        for what, reward in (("it is NaN", not_finite), ("it is too short", too_few), ("it raises", raises))
    ),
    *(
        Mutation("rewards/finite/TASK", f"it is NaN for {said}", reward=on_known(kind))
        for kind, said in zip(("oracle", "empty", "nonsense"), KINDS, strict=True)
    ),
    Mutation(
        "rewards/dropped/TASK",
        "it fails on every answer",
        settings=("tasks.0.on_reward_error=drop", "sft=null"),
        reward=fails_on(2),
    ),
    Mutation(
        "rewards/dropped/TASK",
        "it fails on every answer before a supervised stage",
        settings=("tasks.0.on_reward_error=drop",),
        reward=fails_on(2),
        status="warn",
    ),
    Mutation(
        "rewards/dropped/TASK",
        "it fails on most answers",
        settings=("tasks.0.on_reward_error=drop", "sft=null"),
        reward=fails_on(0.85),
        status="warn",
    ),
    Mutation("rewards/order/TASK", "every answer is worth the same", reward=constant),
    Mutation("rewards/order/TASK", "it is upside down", reward=upside_down),
    Mutation("rewards/order/TASK", "it pays for saying nothing", reward=saying_nothing),
    Mutation("rewards/order/TASK", "it pays most for nonsense", reward=nonsense),
    fault("rewards/attached/TASK", "judge-reads-the-prompt"),
    fault("rewards/attached/TASK", "rewards-out-of-step"),
    Mutation("rewards/attached/TASK", "scores come back in reverse", _reordered(lambda scores: scores[::-1])),
    Mutation("rewards/attached/TASK", "scores are the next group's", patch(Collector, "_answers", _of_the_next_group)),
    *(
        Mutation("rewards/group-size", what, settings=settings, status="warn")
        for what, settings in (
            ("two rollouts, divided by their deviation", ("grpo.group_size=2",)),
            ("two rollouts", ("grpo.group_size=2", "grpo.advantage.kind=rloo")),
            ("three rollouts", ("grpo.group_size=3", "grpo.batch_size=12")),
        )
    ),
    *(
        Mutation("rewards/credit-by-turn", what, checks=_turns(*settings), healthy=_turns(*SOUND_TURNS), status="warn")
        for what, settings in (
            ("turns are divided by their number", ("grpo.advantage.kind=return_to_go",)),
            ("a baseline for each turn that there is", ("grpo.advantage.kind=mt_grpo", "grpo.loss.turns=sum")),
            ("generalised advantages, divided by turns", ("grpo.advantage.kind=loo_gae",)),
        )
    ),
    fault("rewards/constant/TASK", "length-is-rewarded", status="warn"),
    *(
        Mutation("rewards/constant/TASK", what, settings=settings, reward=yes_or_no, rows=rows, status="warn")
        for what, rows, settings in (
            ("nine of ten answers are no, with demonstrations", mostly("no", "yes", 10), ("tasks.0.strata=[answer]",)),
        )
    ),
    *(
        Mutation("judges/answers/TASK", what, checks=judged(sound, status), healthy=judged(sound))
        for what, status in (("the key is refused", 401), ("the endpoint is down", 503), ("the model is unknown", 404))
    ),
    *(
        Mutation("judges/grades/TASK", what, checks=judged(verdict), healthy=judged(sound))
        for what, verdict in (
            ("its replies hold no grade", lambda perfect, answer: "I like it."),
            ("its grades are out of range", lambda perfect, answer: "Grade: 11" if answer else "Grade: 0"),
            ("it refuses to grade", lambda perfect, answer: "As a language model I cannot grade this."),
        )
    ),
    *(
        Mutation("judges/order/TASK", what, checks=judged(verdict), healthy=judged(sound))
        for what, verdict in (
            ("every answer gets the same grade", lambda perfect, answer: "Grade: 10"),
            ("any answer will do", lambda perfect, answer: f"Grade: {6 if answer else 2}"),
            ("grades are upside down", lambda perfect, answer: f"Grade: {1 if answer == perfect else 8}"),
        )
    ),
    *(
        Mutation("isolation/wall/TASK", what, change, checks=_walls(wanted), healthy=_walled, status=status)
        for what, change, wanted, status in _WALLS
    ),
)
