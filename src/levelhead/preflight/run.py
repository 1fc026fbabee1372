"""All checks, one after another, cheapest first, on one context; and a run up to its first forward pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from levelhead.errors import InputError, RewardError
from levelhead.preflight.check import NEEDS, Broken, Check, Need, Outcome, Report
from levelhead.preflight.checks import CHECKS
from levelhead.preflight.context import Context, untouched
from levelhead.recipe import Recipe
from levelhead.tasks.presence import require_files
from levelhead.training.prepare import Setup, describe, prepare
from levelhead.training.ranks import Ranks
from levelhead.training.stream import PromptStream

Tell = Callable[[Outcome], None]
"""Called with each outcome as it is made."""
Progress = Callable[[str, float], None]
"""Called before each check with its name and the share of the work that is done, 0 to 1."""
OnNeed = Callable[[Need], None]
"""Called before the first check of each kind."""

WORK: dict[Need, float] = {"data": 1.0, "rewards": 2.0, "rollouts": 1.0, "passes": 1.0}
"""Work of a check, in units; what the first check of a kind waits for is in :data:`SHARED`."""
SHARED: dict[Need, float] = {"data": 2.0, "rewards": 0.0, "rollouts": 30.0, "passes": 60.0}
"""Work of what the checks of a kind share: rendering, sampling, passes."""


def _silent(*_: object) -> None: ...


def preflight(
    setup: Setup,
    *,
    families: Collection[str] = (),
    needs: Collection[Need] = NEEDS,
    tell: Tell = _silent,
    progress: Progress = _silent,
    on_need: OnNeed = _silent,
    ranks: Ranks | None = None,
) -> Report:
    """Make every check on the run's own policy, tokenizer, tasks and recipe.

    Weights, gradients, modes and random generators are left as they were.

    Args:
        setup: As the run will use it.
        families: Beginnings of the names of the checks to make, as ``rewards`` or ``rewards/order``; all unless given.
        needs: Kinds of checks to make; all unless given.
        tell: Called with each outcome as it is made, in the process that makes the checks.
        progress: Called before each check, in the same process.
        on_need: Called before the first check of each kind, in the same process.
        ranks: The processes of the run: the first that holds the weights makes the checks, and all get the report.
    """
    start, ranks = time.perf_counter(), ranks or Ranks()
    checks = [kind() for kind in CHECKS if kind.needs in needs]
    selection = [check for check in checks if not families or _named(check.name, families)]
    able = [rank for rank, holds in enumerate(ranks.gathered(setup.policy.device.type != "meta")) if holds]
    mine = not able or ranks.rank == able[0]
    outcomes: list[Outcome] = []
    with _Runner(setup, ranks.count, selection, tell, progress, on_need) as runner:
        for need in NEEDS:  # who makes none waits, for one kind of checks at a time
            parts = ranks.agreed(lambda need=need: runner.make(need) if mine else [])  # type: ignore[misc]
            outcomes += [outcome for part in parts for outcome in part]
    return Report(outcomes, time.perf_counter() - start)


def _named(name: str, families: Collection[str]) -> bool:
    return any(f"{name}/".startswith(f"{family}/") for family in families)


class _Runner(contextlib.ExitStack):
    """Makes checks on one context, which is there from the first one on.

    Args:
        setup: As the run will use it.
        processes: Of the run.
        checks: To make.
        tell, progress, on_need: Called while they are made.
    """

    def __init__(
        self, setup: Setup, processes: int, checks: Sequence[Check], tell: Tell, progress: Progress, on_need: OnNeed
    ) -> None:
        super().__init__()
        self._setup, self._processes, self._checks = setup, processes, checks
        self._tell, self._progress, self._on_need = tell, progress, on_need
        self._context: Context | None = None
        self._done, self._over = 0.0, False
        self._all = sum(WORK[c.needs] for c in checks) + sum(SHARED[need] for need in {c.needs for c in checks})

    def make(self, need: Need) -> list[Outcome]:
        """Return the outcomes of the checks of one kind; of none behind a decisive one that failed."""
        outcomes: list[Outcome] = []
        due = [check for check in self._checks if check.needs == need and not self._over]
        for index, check in enumerate(due):
            if self._context is None:
                self._context = Context(self._setup, self._processes)
                self.callback(self._context.close)
                self.enter_context(untouched(self._setup.policy))
            if index == 0:
                self._on_need(need)
            self._progress(check.name, self._done / self._all)
            for outcome in _outcomes(check, self._context):
                outcomes.append(outcome)
                self._tell(outcome)
            self._done += WORK[need] + (SHARED[need] if index == 0 else 0.0)
            self._over = check.decisive and any(outcome.status == "fail" for outcome in outcomes)
            if self._over:
                break
        return outcomes


def _outcomes(check: Check, context: Context) -> list[Outcome]:
    """A check that cannot be made is a failure with its cause, and does not keep the others from being made."""
    outcomes: list[Outcome] = []
    try:
        outcomes.extend(check.run(context))
    except (InputError, RewardError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        outcomes.append(Broken.of(check, error))
    return outcomes


def dry_run(recipe: Recipe) -> dict[str, Any]:
    """Do everything up to the first forward pass: data, tokenizer, the model's shape without its weights, one batch.

    Returns:
        By name: parameters, prompts, tokens of the first batch; ``checks`` holds the warnings and failures of those
        preflight checks that need no weights.
    """
    require_files(recipe)
    start = time.perf_counter()
    setup = prepare(recipe, load="shape")
    facts = describe(setup)
    stream = PromptStream(list(setup.tasks.values()), [setup.weights[name] for name in setup.tasks], recipe.seed)
    n = recipe.grpo.batch_size // recipe.grpo.group_size if recipe.grpo else recipe.sft.batch_size if recipe.sft else 1
    lengths = [len(setup.policy.codec.render(prompt.messages, prompt.chat)) for prompt in stream.take(n)]
    checks = preflight(setup, needs=["data"]).checks
    return facts | {
        "checks": [f"{c.status} {c.name}: {c.message}" for c in checks if c.status != "pass"],
        "first_batch_prompts": n,
        "first_batch_prompt_tokens": {"min": min(lengths), "max": max(lengths), "sum": sum(lengths)},
        "seconds": round(time.perf_counter() - start, 1),
    }


def dry_run_text(facts: Mapping[str, Any], language: str = "en") -> str:
    """Return what :func:`dry_run` found in sentences, in English or Chinese."""
    tokens = facts["first_batch_prompt_tokens"]
    names = {**facts, "tasks": ", ".join(facts["tasks"]), **tokens}
    lines = [text.format(**names) for text in _DRY_RUN[language]]
    lines += [f"{name}: {counts}" for name, counts in facts.get("overlong", {}).items()]
    return "\n".join([*lines, *facts["checks"]])


_DRY_RUN = {
    "en": (
        "{parameters:,} parameters, {trained_parameters:,} of them trained, computed in {compute_dtype}",
        "context of {context:,} tokens, vocabulary of {vocabulary:,}",
        "tasks: {tasks}",
        "first batch: {first_batch_prompts:,} prompts of {min:,} to {max:,} tokens, {sum:,} together",
        "no weights were loaded; {seconds} s",
    ),
    "zh": (
        "{parameters:,} 个参数，训练其中 {trained_parameters:,} 个，计算类型 {compute_dtype}",
        "上下文 {context:,} 个 token，词表 {vocabulary:,}",
        "任务：{tasks}",
        "第一批：{first_batch_prompts:,} 条提示词，每条 {min:,} 到 {max:,} 个 token，共 {sum:,} 个",
        "没有加载权重；用时 {seconds} 秒",
    ),
}
