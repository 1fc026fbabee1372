"""The bar for a policy that writes workflows: the single workflow that is best on average over the held-out problems.

python bench/workflow_fixed.py recipes/workflow-tiny.yaml                            the bar, and the best by class
python bench/workflow_fixed.py recipes/workflow-tiny.yaml --run runs/workflow-tiny   and a run's policy against it

The problems are those that ``levelhead train`` scores between stages.  Expectations are the simulator's own, exact, so
that the comparison is free of the luck of single runs of a workflow; it is paired, problem by problem.  "scored" is
what one run of the workflow on each of these problems really scored.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import math
import statistics
from pathlib import Path

from levelhead.contrib.workflow.language import parse
from levelhead.contrib.workflow.simulator import candidates, expected
from levelhead.contrib.workflow.task import WorkflowTask
from levelhead.errors import InputError
from levelhead.recipe import Recipe, load
from levelhead.recipe.tasks import Workflow
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer

SHOWN = 5


def held_out(recipe: Recipe, task: WorkflowTask) -> list[Prompt]:
    """The problems that a run scores between its stages."""
    seed = derive(recipe.seed, "eval", task.name)
    return list(itertools.islice(task.prompts("eval", seed), recipe.eval.final_items))


def expectations(task: WorkflowTask, section: Workflow, prompts: list[Prompt], texts: list[str]) -> list[float]:
    """The expected reward of one workflow a problem."""
    places = {problem.id: (problem.domain, problem.difficulty) for problem in task.problems("eval")}
    return [
        expected(parse(text), *places[prompt.id], section.reward).reward
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def scored(task: WorkflowTask, prompts: list[Prompt], texts: list[str]) -> float:
    """The mean reward of one run a problem."""
    scores = asyncio.run(task.score_batch([Answer(p, text) for p, text in zip(prompts, texts, strict=True)]))
    return statistics.fmean(score.total for score in scores if score is not None)


def written(run: Path, prompts: list[Prompt]) -> tuple[list[float], list[float], float]:
    """Expected and scored reward of what a run's policy wrote for the problems, in their order, and its validity."""
    file = run / "rollouts" / "eval-grpo.jsonl.gz"
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = {row["prompt_id"]: row for row in map(json.loads, lines)}
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); give a run that has ended") from None
    missing = [prompt.id for prompt in prompts if prompt.id not in rows]
    if missing:
        raise InputError(
            f"{file}: {len(missing)} of {len(prompts)} held-out problems are not kept; "
            "train with log.rollouts at least as high as eval.final_items"
        )
    rewards = [rows[prompt.id] for prompt in prompts]
    invalid = [row["reward"] for row in rewards]
    expectation = [row["info"].get("expected", reward) for row, reward in zip(rewards, invalid, strict=True)]
    return expectation, invalid, statistics.fmean(row["valid"] for row in rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--run", type=Path, help="folder of a finished run of the recipe")
    parser.add_argument("--set", action="append", default=[], help="override a key of the recipe")
    given = parser.parse_args()
    recipe = load(given.recipe, given.set)
    section = next(task for task in recipe.tasks if isinstance(task, Workflow))
    task = WorkflowTask(section)
    prompts = held_out(recipe, task)
    n = len(prompts)

    ranked = sorted(
        ((statistics.fmean(expectations(task, section, prompts, [text] * n)), text) for text in candidates()),
        reverse=True,
    )
    oracle = [(task.oracle(prompt) or [""])[0] for prompt in prompts]
    print(f"{n} held-out problems; reward expected / scored")
    for value, text in ranked[:SHOWN]:
        print(f"  {value:.4f} / {scored(task, prompts, [text] * n):.4f}  {text}")
    by_class = statistics.fmean(expectations(task, section, prompts, oracle))
    print(f"  {by_class:.4f} / {scored(task, prompts, oracle):.4f}  the best of {len(ranked)} for each class")
    if given.run is None:
        return
    reached, rewards, validity = written(given.run, prompts)
    fixed = expectations(task, section, prompts, [ranked[0][1]] * n)
    gaps = [mine - bar for mine, bar in zip(reached, fixed, strict=True)]
    error = statistics.stdev(gaps) / math.sqrt(n)
    print(f"  {statistics.fmean(reached):.4f} / {statistics.fmean(rewards):.4f}  the policy, validity {validity:.1%}")
    print(f"  policy - best fixed, expected: {statistics.fmean(gaps):+.4f} +- {error:.4f} (paired over problems)")


if __name__ == "__main__":
    main()
