"""The prompts: what the policy reads, and what the operators ask a model.

What a model wrote earlier is put between tags and is data to the next call; it is never taken apart for instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from levelhead.contrib.workflow.language import Limits
from levelhead.contrib.workflow.operators import OPERATORS
from levelhead.contrib.workflow.problems import Problem
from levelhead.records import ChatMessage
from levelhead.tasks.datasets.load import dataset_named

INSTRUCTION = "Write a workflow."
"""Put under every question, for a policy that is taught the language."""


def messages(question: str, limits: Limits, *, full: bool) -> tuple[ChatMessage, ...]:
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


_ANSWER_FORM = {
    "math": "Give the final answer on the last line as: #### NUMBER",
    "qa": "Give the final answer, as few words as possible, on the last line as: #### ANSWER",
    "code": "Give the complete Python function {entry_point} in one ```python code block.",
}


def form(problem: Problem) -> str:
    """Return the line that says how an answer must end."""
    if problem.dataset:
        return dataset_named(problem.dataset).instruction
    return _ANSWER_FORM[problem.domain].format(entry_point=problem.entry_point)


_DRAFT = {
    "Custom": "Solve the problem. Be brief. {form}",
    "AnswerGenerate": "Think step by step, then solve the problem. {form}",
    "CustomCodeGenerate": (
        "Write the Python function {name} that solves the problem, in one ```python code block, and nothing else."
    ),
}


def draft(operator: str, problem: Problem, before: str | None) -> list[ChatMessage]:
    """Return the messages that ask for an answer as a drafting operator gives it; :func:`programmer` has its own."""
    task = _DRAFT[operator].format(form=form(problem), name=problem.entry_point or "solve")
    return _ask(problem, task, before)


def programmer(problem: Problem, before: str | None, error: str | None = None) -> list[ChatMessage]:
    """Ask for a program that prints the answer, or, for code, for the function; the last attempt's error at hand."""
    if problem.domain == "code":
        task = f"Write Python for the problem. {form(problem)} Use the standard library only."
    else:
        task = (
            "Write a Python program that computes the answer and prints it, and prints nothing else. "
            "Use the standard library only. Put it in one ```python code block."
        )
    if error:
        task += f"\nYour last program failed:\n<error>\n{error}\n</error>"
    return _ask(problem, task, before)


def write_tests(problem: Problem) -> list[ChatMessage]:
    """Ask for assertions about a function that has been asked for."""
    task = (
        f"Do not solve the problem. Write five Python assert statements about {problem.entry_point} that any right "
        "solution passes, edge cases included, one a line, in one ```python code block."
    )
    return _ask(problem, task, None)


def write_check(problem: Problem, draft: str) -> list[ChatMessage]:
    """Ask for a program that checks an answer."""
    task = (
        "Check the answer below. Write a Python program that works the problem out in its own way, compares, and "
        "prints PASS if the answer is right and FAIL if it is not. Use the standard library only. Put it in one "
        "```python code block."
    )
    return _ask(problem, task, draft, label="answer")


def review(problem: Problem, draft: str) -> list[ChatMessage]:
    """Ask whether an answer is right."""
    task = (
        "Review the answer below. Begin with one line, VERDICT: RIGHT or VERDICT: WRONG. "
        "If it is wrong, say in a few sentences what is wrong."
    )
    return _ask(problem, task, draft, label="answer")


def revise(problem: Problem, draft: str, note: str) -> list[ChatMessage]:
    """Ask for a better answer."""
    task = f"Improve the answer below. A reviewer said:\n<review>\n{note}\n</review>\n{form(problem)}"
    return _ask(problem, task, draft, label="answer")


def reduce(problem: Problem, draft: str) -> list[ChatMessage]:
    """Ask for the bare answer."""
    return _ask(problem, f"Do not solve again. State the answer below in its final form. {form(problem)}", draft)


def choose(problem: Problem, drafts: Sequence[str]) -> list[ChatMessage]:
    """Ask which of several answers is best, by its letter."""
    options = "\n".join(f"<{letter(i)}>\n{draft}\n</{letter(i)}>" for i, draft in enumerate(drafts))
    text = (
        f"Which of these answers to the problem is best? Reply with its letter alone.\n\n<problem>\n{problem.question}"
        f"\n</problem>\n{options}"
    )
    return [{"role": "user", "content": text}]


def letter(i: int) -> str:
    """Return the name of the i-th option, counted from 0."""
    return chr(ord("A") + i)


def _ask(problem: Problem, task: str, before: str | None, label: str = "earlier_attempt") -> list[ChatMessage]:
    held = f"\n<{label}>\n{before}\n</{label}>" if before else ""
    return [{"role": "user", "content": f"{task}\n\n<problem>\n{problem.question}\n</problem>{held}"}]
