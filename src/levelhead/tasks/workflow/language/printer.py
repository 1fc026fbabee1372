"""The canonical text of a workflow: ``parse(to_text(tree)) == tree`` for every tree."""

from __future__ import annotations

from levelhead.tasks.workflow.language.tree import Call, Chain, Conditional, Done, Loop, Node, Parallel


def to_text(node: Node) -> str:
    """Print a workflow on one line, with single spaces and no bracket that changes nothing."""
    match node:
        case Call(operator):
            return operator
        case Done():
            return "done"
        case Chain(steps):
            inner = [_in_brackets(step) if isinstance(step, Conditional) else to_text(step) for step in steps[:-1]]
            return " -> ".join([*inner, to_text(steps[-1])])
        case Parallel(branches):
            return f"[{', '.join(to_text(branch) for branch in branches)}]"
        case Loop(body, times):
            return f"({to_text(body)}) * {times}"
        case Conditional(test, fault, clear):
            return f"{to_text(test)} ? {_unit(fault)} : {_unit(clear)}"


def _unit(node: Node) -> str:
    return _in_brackets(node) if isinstance(node, Chain | Conditional) else to_text(node)


def _in_brackets(node: Node) -> str:
    return f"({to_text(node)})"
