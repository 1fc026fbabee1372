"""What the policy reads: the question and one line, or the language reference before it."""

from __future__ import annotations

from levelhead.contrib.workflow.language import Limits
from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.records import Message

INSTRUCTION = "Write a workflow."
"""Put under every question, for a policy that is taught the language."""


def messages(question: str, limits: Limits, *, full: bool) -> tuple[Message, ...]:
    """Return the chat messages of a problem.

    Args:
        question: The problem.
        limits: Bounds that the reference names.
        full: Whether to put the language reference before the question.
    """
    if not full:
        return ({"role": "user", "content": f"{question}\n{INSTRUCTION}"},)
    return (
        {"role": "system", "content": reference(limits)},
        {"role": "user", "content": f"{question}\n\n{INSTRUCTION} Answer with the workflow in <workflow> tags."},
    )


def reference(limits: Limits) -> str:
    """Return the language reference for a policy that has never seen a workflow."""
    operators = "\n".join(f"- {operator.name}: {operator.does}" for operator in OPERATORS.values())
    return f"""You design workflows that solve problems. You do not solve the problem yourself.

Operators:
{operators}

A workflow is written with them:
- A -> B runs A, then B.
- [A, A, B] -> ScEnsemble runs branches side by side; an ensemble chooses among their answers.
- Review ? Revise : done runs Review, then Revise if it found a fault, else it is done. Test can stand for Review.
- (Review ? Revise : done) * 3 repeats up to 3 times; done leaves the loop.
Brackets ( ) group steps. Begin with an operator that answers. Revise needs a Review or Test before it.
At most {limits.calls} operators may run, {limits.loop} passes of a loop, {limits.depth} levels of nesting.
Use no more than the problem needs: right answers count most, then few tokens, then a simple workflow.

Examples:
<workflow>AnswerGenerate -> Format</workflow>
<workflow>CustomCodeGenerate -> (Test ? Revise : done) * 3</workflow>"""
