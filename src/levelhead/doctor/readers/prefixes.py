"""What stands before a line and is not its own: time stamps, ranks, containers, line numbers, quotation marks."""

from __future__ import annotations

import re

_STAMP = (
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?![,;\t\d])[:,]?\s{0,4}"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?(?![,;\t\d])[:,]?\s{1,4}"
    r"|\[?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2} \d\d:\d\d:\d\d\]?"
    r"(?: [\w.-]{1,60}(?=\s))?\s{1,4}"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?\s{1,4}"
)
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|TRACE|SUCCESS)\]?(?=[\s:|\-\[])\s{0,8}[:|-]?\s{0,4}"
_SOURCE = (
    r"\[?[\w./-]{1,80}\.py:\d{1,6}(?::[\w.<>]{1,60})?\]?\s{0,4}[:\-|]?\s{0,4}"
    r"|\[[A-Za-z_][\w.]{1,60}\](?:\[\w{1,10}\])?\s{0,4}[:-]?\s{0,4}"
    r"|[A-Za-z_][\w.]{0,60}\s{1,4}[-|]\s{1,4}"
    r"|[a-z_][\w.]{0,60}:(?=[A-Za-z{\[('\"])"
    r"|[-|:]\s{1,4}"
)
_ALWAYS = (
    r">{1,4}\s{1,2}|>{1,4}(?=[\w{(\[])"
    r"|\s{1,6}\d{1,7}\t"
    r"|[\w./-]{1,80}\.(?:log|txt|out|err|jsonl?|csv|md):(?:\d{1,9}[:-])?\s{0,2}"
    r"|[\[(]\s?(?:local[ _]?)?(?:rank|node|worker|gpu|process|proc)[ _=:#]{0,2}\d{1,6}\s?[\])][:,]?\s{0,4}"
    r"|(?:rank|node|worker|gpu)[ _=#]?\d{1,6}\s?:\s{1,4}"
    r"|\[\d{1,4},\d{1,5}\]<std(?:out|err)>:\s{0,4}"
    r"|\([A-Za-z_][\w. -]{0,60}\bpid=\d{1,9}[^()\n]{0,60}\)\s{0,4}"
    r"|[A-Za-z][\w.]{0,40}[-_]\d{1,4}\s{1,20}\|\s{1,2}"
    r"|std(?:out|err) [FP] "
    r"|\d{1,4}: (?=\{|\(|\[[a-z]|['\"]|[Ss]tep|[Ii]ter|[Ee]poch|[Gg]lobal)"
)
_ANY = re.compile(f"(?:(?P<level>{_STAMP}|{_LEVEL})|(?P<other>{_ALWAYS}))")
_AFTER = re.compile(_SOURCE)
_MOST = 6


def strip(text: str) -> str:
    """``text`` without the prefixes that loggers, launchers, containers and people who quote put before a line.

    What may be a cell of a table (a time stamp before a comma or tab) stays.
    """
    if text.startswith("\u200b"):
        text = text.lstrip("\u200b")
    at, logged = 0, False
    for _ in range(_MOST):
        match = _ANY.match(text, at)
        if match is None and logged:
            match = _AFTER.match(text, at)
        if match is None or match.end() == at:
            break
        logged = match.re is _ANY and (logged or match.group("level") is not None)
        at = match.end()
    return text[at:] if at else text
