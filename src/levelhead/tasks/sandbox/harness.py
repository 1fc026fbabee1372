"""The harness: runs a program against its tests in the sandbox, and tells on its first output what held.

Never imported by the trainer: its text goes to the sandbox, with a call of :func:`main` at its end.  Nothing but the
standard library is at hand.  Tests are compiled before the program is loaded, and what the verdict needs is bound to
local names, so that a program that changes modules or builtins changes no verdict.
"""

import ast
import os
from collections.abc import Callable
from types import CodeType
from typing import NamedTuple, NoReturn

_SETUP = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Delete,
    ast.Pass,
    ast.Global,
)


class Piece(NamedTuple):
    """A statement of the tests: its source where it is a test, for a reader; its code; whether it is one."""

    told: str
    code: CodeType
    is_test: bool


class Witness(ast.NodeTransformer):
    """Notes that an assertion, or a block that waits for an exception, was reached."""

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        """Put a call before it."""
        super().visit(node)
        return [ast.parse("__reached__()").body[0], node] if isinstance(node, ast.Assert | ast.Try) else node


def pieces(tests: str, entry: str) -> tuple[bool, list[Piece]]:
    """Return whether the tests assert anything, and their statements, the body of ``check(candidate)`` among them."""
    tree = ast.parse(tests)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    checks = [function for function in functions if function.name == "check"]
    calls = {_called(node) for node in ast.walk(tree)}
    body: list[ast.stmt] = []
    for node in tree.body:
        if node in checks:
            body += _opened(checks[checks.index(node)], entry)
        elif not (checks and _called(node) == "check"):
            body.append(node)
    for function in functions:
        if function.name.startswith("test") and not function.args.args and function.name not in calls:
            body += ast.parse(f"{function.name}()").body
    asserts = any(isinstance(inner, ast.Assert) for node in body for inner in ast.walk(node))
    return asserts, [_piece(node) for node in body]


def _piece(node: ast.stmt) -> Piece:
    is_test = _is_test(node)
    source = f"{ast.unparse(node)[:300]}: " if is_test else ""
    module = ast.Module([node], [])
    Witness().generic_visit(module)
    return Piece(source, compile(ast.fix_missing_locations(module), "tests", "exec"), is_test)


def _called(node: ast.AST) -> str | None:
    """Return the name that a statement calls, where it is a call and nothing else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
        return node.value.func.id
    return None


def _is_test(node: ast.stmt) -> bool:
    bare = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call)
    return not (isinstance(node, _SETUP) or bare or _called(node) == "print")


def _opened(check: ast.FunctionDef, entry: str) -> list[ast.stmt]:
    """Return the body of ``check(candidate)``, statement by statement; a call of it where it needs a scope."""
    parameters = check.args
    scoped = any(isinstance(n, ast.Return | ast.Yield | ast.YieldFrom | ast.Nonlocal) for n in ast.walk(check))
    plain = len(parameters.args) <= 1 and not (
        parameters.defaults or parameters.kwonlyargs or parameters.vararg or parameters.kwarg
    )
    if plain and not scoped:
        return [*(ast.parse(f"{argument.arg} = {entry}").body[0] for argument in parameters.args), *check.body]
    return [check, *ast.parse(f"check({entry if parameters.args else ''})").body]


def _why(error: BaseException, anything: type[BaseException] = BaseException) -> str:
    try:
        return f"{type(error).__name__} {str(error)[:200]}"
    except anything:
        return type(error).__name__


def _own_output() -> int:
    """Send what the program prints nowhere, and return the descriptor that still reaches the caller."""
    out, null = os.dup(1), os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    return out


def main(
    mark: str,
    source: str,
    tests: str,
    entry: str,
    # Bound before the program runs.
    write: Callable[[int, bytes], int] = os.write,
    leave: Callable[[int], NoReturn] = os._exit,
    pid: Callable[[], int] = os.getpid,
    run: Callable[[CodeType, dict[str, object]], None] = exec,
    anything: type[BaseException] = BaseException,
    why: Callable[[BaseException], str] = _why,
) -> None:
    """Load the program, run the tests, and tell lines that begin with ``mark``.

    ``total N`` before the first test; ``pass`` or ``fail WHY`` after each; ``end PASSED TOTAL`` after the last, where
    other statements that failed are counted into the total.  ``missing`` or ``broken WHY`` where nothing could be run.
    """
    out, me = _own_output(), pid()
    reached: list[int] = []

    def tell(word: str) -> None:
        if pid() != me:  # a copy that the program forked off has nothing to say
            leave(0)
        write(out, (mark + " ".join(word.split()) + "\n").encode())

    space: dict[str, object] = {"__name__": "answer"}
    try:
        asserts, todo = pieces(tests, entry)
        total = sum(piece.is_test for piece in todo)
    except anything as error:
        tell("broken the tests: " + why(error))
        leave(0)
    try:
        run(compile(source, "answer", "exec"), space)
        if not callable(space.get(entry)):
            tell("missing")
            leave(0)
    except anything as error:
        tell("broken " + why(error))
        leave(0)
    space["__name__"], space["__reached__"] = "__main__", lambda: reached.append(1)
    passed, spoilt = 0, 0
    tell(f"total {total or 1}")
    for piece in todo:
        try:
            run(piece.code, space)
        except anything as error:
            spoilt += not piece.is_test
            tell("fail " + piece.told + why(error))
            continue
        if piece.is_test:
            passed += 1
            tell("pass")
    if not total or (asserts and not reached):
        passed = 0
        tell("fail the tests never assert anything")
    tell(f"end {passed} {(total or 1) + spoilt}")
    leave(0)
