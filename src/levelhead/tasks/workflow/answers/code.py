"""How right a program is: it is run against tests, in the sandbox."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.workflow.sandbox import run_program

_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)

_HARNESS = r"""
import ast, os, sys
MARK, SOURCE, TESTS, ENTRY = {settings}
out = os.dup(1)
null = os.open("/dev/null", os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)

def tell(word):
    os.write(out, (MARK + word + "\n").encode())

def steps(tree, space):
    body = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            for name in [argument.arg for argument in node.args.args][:1]:
                space[name] = space[ENTRY]
            body += node.body
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
                  and getattr(node.value.func, "id", "") == "check"):
            body.append(node)
    return body

space = {{"__name__": "answer"}}
try:
    exec(compile(SOURCE, "answer", "exec"), space)
    if not callable(space.get(ENTRY)):
        tell("missing")
        os._exit(0)
except BaseException as error:
    tell("broken " + type(error).__name__ + ": " + str(error)[:200])
    os._exit(0)
todo = steps(ast.parse(TESTS), space)
tell("total " + str(sum(isinstance(node, ast.Assert) for node in todo) or 1))
clean = True
for node in todo:
    try:
        exec(compile(ast.Module([node], []), "tests", "exec"), space)
        if isinstance(node, ast.Assert):
            tell("pass")
    except BaseException as error:
        clean = False
        tell("fail " + (ast.unparse(node) + ": " if isinstance(node, ast.Assert) else "")
             + type(error).__name__ + " " + str(error)[:200])
if clean and not any(isinstance(node, ast.Assert) for node in todo):
    tell("pass")
tell("end")
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class TestRun:
    """What tests said of a program.

    Attributes:
        passed: Tests that held.
        total: Tests there are; 0 where the program could not even be loaded.
        note: The first thing that went wrong, for a reviser and for whoever reads samples.
    """

    passed: int
    total: int
    note: str = ""

    @property
    def level(self) -> float:
        """The correctness level: 1.0 all hold, 0.7 four in five, 0.4 two in five, 0.2 fewer, 0.0 no such program."""
        if self.total == 0:
            return 0.0
        share = self.passed / self.total
        return 1.0 if share == 1.0 else 0.7 if share >= 0.8 else 0.4 if share >= 0.4 else 0.2


def extract_program(answer: str, entry_point: str) -> str:
    """Return the program of an answer: the last code fence that defines the function, else the last, else all of it."""
    blocks = [block for block in _FENCED.findall(answer) if block.strip()]
    defining = [block for block in blocks if re.search(rf"\bdef\s+{re.escape(entry_point)}\s*\(", block)]
    return str((defining or blocks or [answer])[-1])


def run_tests(source: str, tests: str, entry_point: str, limits: SandboxLimits | None = None) -> TestRun:
    """Run a program against tests, in the sandbox.

    Every ``assert`` at the top level of the tests, and in the body of a ``check(candidate)``, counts as one test; what
    stands between them is run as well.  What the program prints is thrown away.
    """
    # The mark tells the harness's lines from anything else on the pipe; it is no secret from a determined program.
    mark = secrets.token_hex(8)
    settings = ", ".join(json.dumps(text) for text in (f"{mark} ", source, tests, entry_point))
    result = run_program(_HARNESS.format(settings=settings), limits)
    said = [line[len(mark) + 1 :] for line in result.stdout.splitlines() if line.startswith(f"{mark} ")]
    total = next((int(line.split()[1]) for line in said if line.startswith("total ")), 0)
    passed = sum(line == "pass" for line in said)
    if "end" in said:
        note = next((line for line in said if line.startswith("fail")), "")
    elif said and total == 0:
        note = f"the program has no function {entry_point}" if said[0] == "missing" else said[0]
    else:
        note = result.note or f"the program ended early ({result.status})"
    return TestRun(min(passed, total), total, note)
