"""Print each known bug, the checks that catch it, and what they say; or write the tables of checks into the pages.

These are the bugs that a check of the preflight was made for; ``bench/fault_matrix.py`` tries them all on everything.

python bench/fault_table.py            print the table of bugs
python bench/fault_table.py --write    write the checks, what a pass proves and what turns each red into docs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults.known import FAULTS, Fault, inject  # noqa: E402
from levelhead.preflight import preflight  # noqa: E402
from preflight.mutations.table import as_markdown, checks_as_markdown  # noqa: E402
from preflight_setup import CAUGHT_BY, setup_of  # noqa: E402

PAGES = {
    "preflight.md": ("table of checks", checks_as_markdown),
    "experiments/preflight.md": ("mutation table", as_markdown),
}
"""The pages that hold a table between two comments: the comment's words, and what makes the table."""
FAMILIES = ("tokens", "stops", "agreement", "loss", "sampling", "signs", "rewards")


def row(fault: Fault) -> str:
    """One line of the table."""
    with inject(fault.name):
        failures = preflight(setup_of(*fault.settings), families=FAMILIES).failures
    if not failures:
        return f"| `{fault.name}` | {fault.story} | **not caught** | |"
    nearest = next((check for check in failures if check.name == CAUGHT_BY[fault.name]), failures[0])
    others = [check.name for check in failures if check is not nearest]
    names = f"**{nearest.name}**" + (", " + ", ".join(others) if others else "")
    message = nearest.message.replace("|", "\\|").replace("\n", " ")
    return f"| `{fault.name}` | {fault.story} | {names} | {message} |"


def table() -> tuple[str, int]:
    """The whole table, and how many faults nothing caught."""
    lines = ["| fault | what goes wrong | caught by | what the check says |", "|---|---|---|---|"]
    for fault in (FAULTS[name] for name in CAUGHT_BY):
        lines.append(row(fault))
        print(lines[-1], file=sys.stderr, flush=True)
    clean = preflight(setup_of(), families=FAMILIES).failures
    lines.append(f"| none | a clean run | {', '.join(c.name for c in clean) or 'nothing fails'} | |")
    return "\n".join(lines), sum("**not caught**" in line for line in lines) + len(clean)


def write() -> None:
    """Write the tables of checks into their pages."""
    for name, (words, make) in PAGES.items():
        page = ROOT / "docs" / name
        before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {words} -->\n")
        _, end, after = rest.partition(f"\n<!-- end of {words} -->")
        page.write_text(f"{before}{start}{make()}{end}{after}", encoding="utf-8")


def main() -> None:
    """Make the table, or write those of the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables of checks into docs")
    if parser.parse_args().write:
        return write()
    text, missed = table()
    print(text)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
