"""What a completion states as its answer, and the one number in it."""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\f?boxed\s*")
_OUTER = re.compile(r"^[\s*_`\"'\u201c\u2018]+|[\s*_`\"'\u201d\u2019.]+$")


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` of a text holds, its braces matched; ``None`` where there is none."""
    for match in reversed(list(_BOX.finditer(text))):
        rest = text[match.end() :]
        if not rest.startswith("{"):
            if rest[:1].isalnum():  # \boxed 5
                return rest.split(None, 1)[0].rstrip("$.")
            continue
        depth = 0
        for position, character in enumerate(rest):
            depth += (character == "{") - (character == "}")
            if depth == 0:
                return rest[1:position].strip()
    return None


def in_a_box(solution: str, answer: str) -> str:
    r"""Return a solution that ends in its answer in the one ``\boxed{}`` that it holds; other boxes are opened."""
    if ends_in_box(solution):
        return solution
    return f"{_BOX.sub('', solution).rstrip()}\n\\boxed{{{answer}}}".lstrip()


def ends_in_box(text: str) -> bool:
    r"""Whether a completion gives its answer as asked: in one ``\boxed{}``, with no words after it."""
    matches = list(_BOX.finditer(text))
    answer = boxed(text)
    if len(matches) != 1 or answer is None:
        return False
    tail = text[matches[0].end() :].replace(answer, "", 1)
    return not re.search(r"\w", tail)


def stated(text: str, *, lines: bool = True) -> str | None:
    """Return what a completion states as its answer.

    Args:
        text: The completion.
        lines: Whether the last line counts as the answer where nothing marks one.

    Returns:
        The text after the last ``####``, in the last box, or after the last "answer is"; else the last line, or
        ``None`` where there is none.
    """
    if MARKER in text:
        return (final_answer(text) or "").strip() or None
    box = boxed(text)
    if box is not None:
        return box or None
    statement = final_answer(text)
    if statement is None and lines:
        written = [line for line in text.strip().splitlines() if line.strip()]
        statement = written[-1] if written else None
    return _OUTER.sub("", statement) or None if statement is not None else None


MARKER = "####"
"""What GSM8K puts before the final answer."""

_LONGEST = 200
_MOST_DIGITS = 40
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_SAID = re.compile(r"\banswer\s*(?:is|:|=)\s*([^\n]*)", re.IGNORECASE)
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")
_GROUP = r"[,_'\u2019\u00a0\u2009\u202f]"
_PLAIN = rf"(?:[0-9]{{1,3}}(?:{_GROUP}[0-9]{{3}})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"""
    (?P<sign>[-+]\s?)? (?P<money>[$€£¥₹]\s?)? (?P<late_sign>[-+])?
    (?:
        (?:(?P<whole>[0-9]+)\s+)? (?P<top>{_PLAIN}) \s?/\s? (?P<bottom>{_PLAIN})
      | (?P<digits>{_PLAIN}(?:\.[0-9]+)? | \.[0-9]+) (?:[eE](?P<power>[-+]?[0-9]{{1,2}})(?![0-9]))?
    )
    """,
    re.VERBOSE,
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = re.compile(rf"\s*({'|'.join(_SCALES)})\b", re.IGNORECASE)
_PLAINER = str.maketrans(dict.fromkeys("\u2212\u2013\u2012\ufe63\uff0d", "-") | {"*": None, "`": None})


def final_answer(text: str) -> str | None:
    r"""Return the part of a completion that states its answer, or ``None`` where nothing does.

    Looked for in this order: what follows the last ``####`` on its line, the last ``\boxed{...}``, what follows the
    last "answer is" (or "answer:") on its line.
    """
    if MARKER in text:
        return text.rsplit(MARKER, 1)[1].split("\n", 1)[0]
    for pattern in (_BOXED, _SAID):
        matches = pattern.findall(text)
        if matches:
            return str(matches[-1])
    return None


def ends_in_marker(text: str) -> bool:
    """Whether a completion gives its answer as asked: ``####`` once, on its last line."""
    return text.count(MARKER) == 1 and "\n" not in text.rstrip().rsplit(MARKER, 1)[1]


def parse_number(text: str) -> Fraction | None:
    """Read the only number in a short text, exactly.

    Thousands separators, signs, decimals, fractions, currency signs, scale words ("2 million") and units around the
    number are understood.  A comma that does not separate thousands ("12,50") makes the text unreadable, because it
    means different things to different people.

    Args:
        text: An answer of at most a line, such as ``final_answer`` returns.

    Returns:
        The value, or ``None`` where the text holds no number, more than one, or one that cannot be read.
    """
    if len(text) > _LONGEST:
        return None
    plain = _LATEX_FRACTION.sub(r"\1/\2", text.translate(_PLAINER)).replace("{,}", ",").replace("\\!", "")
    plain = _LATEX_TEXT.sub(r" \1 ", plain).replace("\\", " ")
    matches = list(_NUMBER.finditer(plain))
    if len(matches) != 1:
        return None
    match = matches[0]
    before, after = plain[: match.start()], plain[match.end() :]
    glued = re.search(r"[\w.]$", before) and not match["money"]
    if glued or re.match(rf"{_GROUP}?[0-9]|[/+^=]|\s*[-+/^=]\s*\w", after):
        return None
    value = _value(match)
    if value is None:
        return None
    scale = _SCALE.match(after)
    return value * _SCALES[scale[1].lower()] if scale else value


def _value(match: re.Match[str]) -> Fraction | None:
    """Turn a match of ``_NUMBER`` into its value; ``None`` for a zero denominator, two signs or too many digits."""
    if len(match[0]) > _MOST_DIGITS or (match["sign"] and match["late_sign"]):
        return None
    if match["top"] is not None:
        bottom = _integer(match["bottom"])
        if bottom == 0:
            return None
        size = Fraction(_integer(match["top"]), bottom) + int(match["whole"] or 0)
    else:
        size = Fraction(re.sub(_GROUP, "", match["digits"])) * Fraction(10) ** int(match["power"] or 0)
    negative = "-" in (match["sign"] or "") + (match["late_sign"] or "")
    return -size if negative else size


def _integer(digits: str) -> int:
    return int(re.sub(_GROUP, "", digits))
