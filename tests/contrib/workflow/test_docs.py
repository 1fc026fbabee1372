"""The pages on workflows state the numbers that the code uses."""

from __future__ import annotations

from pathlib import Path

from levelhead.contrib.workflow.language import Limits
from levelhead.contrib.workflow.language.extract import RULES
from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.contrib.workflow.problems import DOMAINS, Problem
from levelhead.contrib.workflow.simulator import best_fixed_workflow, best_workflow, candidates, expected, model
from levelhead.contrib.workflow.simulator.choose import catalogue
from levelhead.recipe.tasks import Workflow
from levelhead.recipe.workflow import RewardWeights, SandboxLimits, WeightedReward
from levelhead.tasks.datasets.base import DIFFICULTIES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("workflow.md", "experiments/workflow.md"))
FLAT = " ".join(PAGE.split())


def three(values: tuple[float, float, float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def test_every_operator_stands_in_its_table() -> None:
    for operator in OPERATORS.values():
        assert f"| {operator.does} | {operator.calls} | {operator.tokens} |" in PAGE, operator.name


def test_the_tables_of_the_simulator_are_the_models() -> None:
    for name, right in model.DRAFT_RIGHT.items():
        assert f"| `{name}` | {' | '.join(three(right[domain]) for domain in DOMAINS)} |" in PAGE
        nothing = model.NO_DRAFT[name]
        assert f"| `{name}` | {' | '.join(f'{nothing[domain]:.2f}' for domain in DOMAINS)} |" in PAGE
        assert f"{name} {model.HEAD_START[name]:.2f}" in FLAT
    for judge, chances in model.NOTICES.items():
        for domain in DOMAINS:
            row = " | ".join(f"{chance:.2f}" for chance in chances[domain])
            assert f"| `{judge}` | {domain} | {row} |" in PAGE


def test_the_sentences_about_the_simulator_state_its_numbers() -> None:
    tricky = ", ".join(f"{d} {share:.0%}" for d, share in zip(DIFFICULTIES, model.TRICKY_SHARE, strict=True))
    faults = ", ".join(f"{domain} {three(model.FAULTS[domain])}" for domain in DOMAINS)
    repairs = ", ".join(f"{domain} {three(model.REPAIRS[domain])}" for domain in DOMAINS)
    after_test = ", ".join(f"{model.REPAIRS_AFTER_TEST[domain]} ({domain})" for domain in DOMAINS)
    formats = ", ".join(f"{model.FORMATS[domain]:.2f} ({domain})" for domain in DOMAINS)
    for stated in (
        tricky,
        f"multiplied by {model.TRICKY_FACTOR}",
        faults,
        f"multiplied by {' / '.join(map(str, model.NOTICES_FACTOR))}",
        repairs,
        f"multiplied by {after_test}",
        f"by {model.REPAIRS_WRONG} for WRONG and NONE",
        f"by {model.REPAIRS_UNTOLD} where the verdict was clear",
        f"{model.SPOILS[True]} after a false alarm and of {model.SPOILS[False]} after a clear verdict",
        formats,
        ", ".join(f"{model.FORMAT_SPOILS[domain]:.2f}" for domain in DOMAINS),
        f"{model.AGREEMENT[False]} on plain and {model.AGREEMENT[True]} on tricky",
        f"odds of {' / '.join(map(str, model.JUDGEMENT))}",
        f"times {' / '.join(map(str, model.LENGTH))}",
    ):
        assert stated in FLAT, stated


def test_the_table_of_best_workflows_is_what_the_code_chooses() -> None:
    reward, limits = WeightedReward(kind="weighted"), Limits()
    trees = dict(catalogue(limits))
    classes = [Problem("?", (("1",),), id=f"{d}-{h}", domain=d, difficulty=h) for d in DOMAINS for h in DIFFICULTIES]
    fixed = best_fixed_workflow(classes, reward, limits)
    assert f"The best fixed workflow is `{fixed}`" in FLAT
    for problem in classes:
        place = (problem.domain, problem.difficulty)
        best = best_workflow(*place, reward, limits)
        own, other = expected(trees[best], *place, reward), expected(trees[fixed], *place, reward)
        assert f"| {', '.join(place)} | `{best}` | {own.reward:.3f} | {own.right:.2f} | {other.reward:.3f} |" in PAGE
    assert f"among {len(set(candidates()))} candidates" in FLAT


def test_defaults_of_the_recipe_are_those_documented() -> None:
    section, sandbox, limits = Workflow(kind="workflow"), SandboxLimits(), Limits()
    assert f"| `items` | {section.items} |" in PAGE
    assert f"depth {limits.depth}, loop {limits.loop}, calls {limits.calls}" in PAGE
    assert (section.limits.depth, section.limits.loop, section.limits.calls) == (
        limits.depth,
        limits.loop,
        limits.calls,
    )
    for part, weight in RewardWeights().model_dump().items():
        assert f"| `{part}` | {weight:.2f} |" in PAGE
    for key in ("cpu_s", "memory_mb", "output_kb", "file_mb", "processes"):
        assert f"`{key}: {getattr(sandbox, key)}`" in PAGE
    assert f"`wall_s: {sandbox.wall_s:.0f}`" in PAGE
    for rule in RULES:
        assert f"| `{rule}` |" in PAGE
