"""What an answer of the policy is worth: named parts of what its workflow led to, cost and looks like."""

from __future__ import annotations

from collections.abc import Mapping

from levelhead.contrib.workflow.interpret import Outcome
from levelhead.contrib.workflow.language import Chain, Extraction, Node, calls, depth
from levelhead.contrib.workflow.language.tree import children
from levelhead.recipe.workflow import RewardConfig, ThreeLevelReward

LEVELS = (0.0, 0.2, 0.4, 0.7, 1.0)
"""How right an answer is: no answer, a wrong one, partly right, nearly right, right."""

FEATURES = ("diversity", "improvement", "execution_success", "efficiency", "operator_variety")
"""Names of the structural features, those of ``objective.advantages``."""

PARTS = ("correctness", "efficiency", "simplicity", "format", "repetition")
"""Names of the parts, each in [0, 1], all 0 for an answer that is no workflow."""


def looks(extraction: Extraction) -> Mapping[str, float]:
    """Return the parts that depend on the policy's answer alone: ``simplicity``, ``format``, ``repetition``.

    Raises:
        ValueError: The answer holds no workflow.
    """
    if extraction.tree is None:
        raise ValueError("an answer without a workflow has no parts of a reward")
    return {
        "simplicity": simplicity(extraction.tree),
        "format": 0.0 if extraction.repairs else 1.0 if extraction.alone else 0.5,
        "repetition": 1.0 - repeated_share(extraction.tree),
    }


def parts(config: RewardConfig, looks: Mapping[str, float], level: float, tokens: int) -> Mapping[str, float]:
    """Return all parts of the reward of a run, each in [0, 1].

    Args:
        config: The task's ``reward`` section.
        looks: What :func:`looks` returned.
        level: How right the workflow's answer is, one of ``LEVELS``.
        tokens: Tokens its operators used.
    """
    return {"correctness": level, "efficiency": max(0.0, 1.0 - tokens / config.token_budget), **looks}


def total(config: RewardConfig, parts: Mapping[str, float]) -> float:
    """Return the reward of a valid workflow from its parts: for ``weighted`` in [0, 1], always above ``invalid``."""
    if isinstance(config, ThreeLevelReward):
        return config.right if parts["correctness"] == LEVELS[-1] else config.wrong
    weights = config.weights
    return sum(parts[name] * float(getattr(weights, name)) for name in PARTS)


def simplicity(tree: Node) -> float:
    """Return 1 for a single operator, less 0.1 for every further one as written and for every nesting, at least 0."""
    return max(0.0, 1.0 - 0.1 * (sum(1 for _ in calls(tree)) - 1) - 0.1 * depth(tree))


def repeated_share(tree: Node) -> float:
    """Return the share of a workflow's arrows that join two equal steps: ``A -> A -> B`` has one half.

    Equal branches of a parallel block are no repetition: an ensemble lives on them.
    """
    arrows, equal = _arrows(tree)
    return equal / arrows if arrows else 0.0


def _arrows(node: Node) -> tuple[int, int]:
    below = [_arrows(child) for child in children(node)]
    arrows, equal = sum(a for a, _ in below), sum(e for _, e in below)
    if isinstance(node, Chain):
        arrows += len(node.steps) - 1
        equal += sum(one == other for one, other in zip(node.steps, node.steps[1:], strict=False))
    return arrows, equal


def features(tree: Node, share_alike: float, outcome: Outcome, budget: int) -> Mapping[str, float]:
    """Return what ``advantage: workflow_aware`` tells rollouts of equal rewards apart by, each in [0, 1].

    ``diversity`` 1 less the share of the group's other answers with the same workflow; ``improvement`` what the
    workflow made of its first draft; ``execution_success`` whether there was an answer; ``efficiency`` as in the
    reward; ``operator_variety`` different operators, of six.

    Args:
        tree: The workflow.
        share_alike: Share of the group's other answers that hold the same workflow.
        outcome: What its run led to.
        budget: The reward's ``token_budget``.
    """
    variety = len({call.operator for call in calls(tree)})
    return {
        "diversity": 1.0 - share_alike,
        "improvement": max(0.0, outcome.level - outcome.first_level),
        "execution_success": float(outcome.level > 0.0),
        "efficiency": max(0.0, 1.0 - outcome.tokens / budget),
        "operator_variety": min(1.0, variety / 6),
    }
