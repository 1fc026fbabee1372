"""Write the tables of docs/preflight.md: each known bug, the checks that catch it, and what they say; and each check,
with what turns it red.

These are the bugs that a check of the preflight was made for; ``bench/fault_matrix.py`` tries them all on everything.

python bench/fault_table.py            print the table
python bench/fault_table.py --write    put it into docs/preflight.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from faults.known import FAULTS, Fault, inject  # noqa: E402
from levelhead.preflight import preflight  # noqa: E402
from preflight.mutations.table import as_markdown  # noqa: E402
from preflight_setup import CAUGHT_BY, setup_of  # noqa: E402

PAGE = ROOT / "docs" / "preflight.md"
START, END = "<!-- fault table -->", "<!-- end of fault table -->"
MUTATIONS_START, MUTATIONS_END = "<!-- mutation table -->", "<!-- end of mutation table -->"
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


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into docs/preflight.md")
    arguments = parser.parse_args()
    text, missed = table()
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        page = f"{before}{START}\n{text}\n{END}{after}"
        before, _, rest = page.partition(MUTATIONS_START)
        _, _, after = rest.partition(MUTATIONS_END)
        PAGE.write_text(f"{before}{MUTATIONS_START}\n{as_markdown()}\n{MUTATIONS_END}{after}", encoding="utf-8")
    else:
        print(text)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
