"""What arrows, branches, loops and done mean, seen by a backend that keeps a diary."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from levelhead.contrib.workflow.interpret import Path, Verdict, run
from levelhead.contrib.workflow.language import parse


class Diary:
    """Drafts are texts; each verdict finds a fault until the faults are used up."""

    def __init__(self, faults: int = 0) -> None:
        self.faults = faults
        self.log: list[str] = []
        self.paths: list[Path] = []

    def note(self, name: str, path: Path) -> None:
        self.log.append(name)
        self.paths.append(path)

    async def draft(self, operator: str, path: Path, before: str | None) -> str:
        self.note(operator, path)
        return f"{before}+{operator}" if before else operator

    async def judge(self, operator: str, path: Path, draft: str) -> Verdict:
        self.note(operator, path)
        self.faults -= 1
        return Verdict(self.faults >= 0, operator, f"about {draft}")

    async def revise(self, path: Path, draft: str, verdict: Verdict) -> str:
        self.note("Revise", path)
        return f"{draft}/{verdict.by}"

    async def reduce(self, path: Path, draft: str) -> str:
        self.note("Format", path)
        return f"<{draft}>"

    async def vote(self, operator: str, path: Path, drafts: Sequence[str]) -> str:
        self.note(operator, path)
        return "|".join(drafts)


@pytest.mark.parametrize(
    ("text", "faults", "end", "log"),
    [
        ("Custom -> Programmer", 0, "Custom+Programmer", "Custom Programmer"),
        ("Custom -> Review -> Revise", 0, "Custom/Review", "Custom Review Revise"),
        ("Custom -> Review ? Revise : done", 1, "Custom/Review", "Custom Review Revise"),
        ("Custom -> Review ? Revise : done", 0, "Custom", "Custom Review"),
        (
            "Custom -> (Review ? Revise : Format) -> Programmer",
            0,
            "<Custom>+Programmer",
            "Custom Review Format Programmer",
        ),
        ("Custom -> (Review ? Revise : done) -> Format", 0, "Custom", "Custom Review"),
        ("Custom -> (Test ? Revise : done) * 3 -> Format", 1, "<Custom/Test>", "Custom Test Revise Test Format"),
        ("Custom -> (Test ? Revise : done) * 2", 9, "Custom/Test/Test", "Custom Test Revise Test Revise"),
        ("Custom -> (Test -> Revise) * 2", 0, "Custom/Test/Test", "Custom Test Revise Test Revise"),
        ("[Custom, Programmer -> Format] -> ScEnsemble", 0, "Custom|<Programmer>", None),
        ("Custom -> [Programmer, Format] -> MdEnsemble", 0, "Custom+Programmer|<Custom>", None),
        ("[Custom -> Review ? Revise : done, Custom] -> ScEnsemble -> Format", 0, "<Custom|Custom>", None),
    ],
)
async def test_a_workflow_runs_as_it_reads(text: str, faults: int, end: str, log: str | None) -> None:
    diary = Diary(faults)
    assert await run(parse(text), diary) == end
    if log is not None:
        assert " ".join(diary.log) == log


async def test_every_call_of_a_run_has_a_place_of_its_own() -> None:
    diary = Diary(faults=99)
    await run(parse("[Custom, Custom -> (Test ? Revise : done) * 3, Custom] -> ScEnsemble -> Review -> Revise"), diary)
    assert len(set(diary.paths)) == len(diary.paths)


async def test_an_unchecked_workflow_without_a_verdict_is_an_error_and_no_guess() -> None:
    with pytest.raises(ValueError, match="no verdict"):
        await run(parse("Custom -> Revise"), Diary())
    with pytest.raises(ValueError, match="ended with 2"):
        await run(parse("[Custom, Custom]"), Diary())
