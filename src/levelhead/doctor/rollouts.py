"""What the answers of a run look like: the same ones over and over, loops, cut ends, template tokens, mixed scripts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.documents import DocumentError, load_json, read_lines
from levelhead.errors import InputError, first_line

_ANSWERS = (
    "completion",
    "completions",
    "response",
    "responses",
    "output",
    "outputs",
    "generation",
    "answer_text",
    "generated_text",
    "text",
)
_PROMPTS = ("prompt", "prompts", "question", "input", "query", "problem")
_TEMPLATE = re.compile(
    r"<\|[A-Za-z_]{2,40}\|>|<start_of_turn>|<end_of_turn>|\[/?INST\]|<<SYS>>|</?s>|<\uff5c[^<>\n]{1,40}\uff5c>"
    r"|(?:^|\n)\s{0,4}(?:assistant|user|human|system)\s{0,2}(?::|\n)",
    re.IGNORECASE,
)
_END_TOKENS = re.compile(
    r"(?:<\|(?:im_end|endoftext|eot_id|end)\|>|</s>|<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>)\s*$"
)
_ENDS = re.compile(r"""(?:[.!?。\uff01\uff1f…:;)\]}>"'`*$|\d%]|\\\]|```)\s*$""")
_SCRIPTS = re.compile("LATIN|CJK|CYRILLIC|ARABIC|HANGUL|HIRAGANA|KATAKANA|THAI|DEVANAGARI|HEBREW")
_MAX_RECORDS = 20_000
_MAX_TEXT = 64 << 20
_LOOKED_AT = 8000
"""Characters of an answer's end that are looked at."""
_MAX_FILES = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer with its prompt, as text."""

    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Shares of the answers of a run, all between 0 and 1.

    Attributes:
        count: Answers looked at.
        prompts: Different prompts among them.
        constant: Share of the most frequent answer, where there are several prompts.
        alike: Share of groups (answers to one prompt) whose answers are all the same.
        empty: Answers without a letter or digit.
        repeating: Answers that end in a loop.
        cut: Long answers that end in the middle of a sentence.
        template: Answers that hold tokens or headings of a chat template before their end.
        mixed: Answers in which a script that their prompt does not have makes up a tenth of the letters or more.
    """

    count: int
    prompts: int
    constant: float
    alike: float
    empty: float
    repeating: float
    cut: float
    template: float
    mixed: float


def read_rollouts(path: Path) -> RolloutFacts:
    """Look at the answers in a file (JSON lines, gzipped too, or parquet) or in the newest files of a folder.

    Raises:
        InputError: It cannot be read, or holds no answers.
    """
    if not path.exists():
        raise InputError(f"--rollouts {path}: no such file or folder")
    answers: list[Answer] = []
    for file in reversed(_files(path)):
        answers += _read(file, _MAX_RECORDS - len(answers))
        if len(answers) >= _MAX_RECORDS:
            break
    if not answers:
        raise InputError(f"--rollouts {path}: holds no answers (looked for the columns {', '.join(_ANSWERS[:5])})")
    return examine_answers(answers)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    suffixes = (".parquet", ".jsonl", ".jsonl.gz", ".json")
    files = sorted(p for p in path.iterdir() if p.is_file() and p.name.endswith(suffixes))
    return files[-_MAX_FILES:]


def _read(file: Path, most: int) -> list[Answer]:
    answers: list[Answer] = []
    for record in _parquet(file) if file.suffix == ".parquet" else _lines(file):
        answers += _answers(record)
        if len(answers) >= most:
            break
    return answers[: max(most, 0)]


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        for line in read_lines(file, longest=1 << 20, most=_MAX_TEXT):
            try:
                record = load_json(line)
            except DocumentError:
                continue
            if isinstance(record, dict):
                yield record
    except (OSError, EOFError) as error:
        raise InputError(f"--rollouts {file}: cannot be read ({error})") from None


def _parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"--rollouts {file}: parquet files need pyarrow; install it, or give JSON lines") from None
    try:
        table = parquet.ParquetFile(file)
        names = [n for n in table.schema_arrow.names if n.lower() in (*_ANSWERS, *_PROMPTS)]
        for batch in table.iter_batches(batch_size=512, columns=names):
            yield from batch.to_pylist()
    except Exception as error:  # pyarrow raises its own kinds, without a common base that the light install has
        raise InputError(f"--rollouts {file}: is no readable parquet file ({first_line(error)[:80]})") from None


def _answers(record: Mapping[str, Any]) -> list[Answer]:
    lowered = {str(key).lower(): value for key, value in record.items()}
    prompt = next((_text(lowered[key]) for key in _PROMPTS if key in lowered), "")
    for key in _ANSWERS:
        value = lowered.get(key)
        if isinstance(value, str):
            return [Answer(prompt, value)]
        if isinstance(value, list) and value:
            if isinstance(value[0], Mapping) and "content" in value[0]:
                return [Answer(prompt, _text(value))]
            return [Answer(prompt, _text(item)) for item in value]
    return []


def _text(value: Any) -> str:
    """A text, or the contents of a list of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _text(value.get("content", ""))
    return "\n\n".join(_text(item) for item in value) if isinstance(value, list) else ""


def examine_answers(answers: list[Answer]) -> RolloutFacts:
    """The shares of a list of answers that is not empty."""
    n = len(answers)
    plain = [" ".join(answer.text.split()) for answer in answers]
    groups: dict[str, list[str]] = defaultdict(list)
    for answer, text in zip(answers, plain, strict=True):
        groups[answer.prompt].append(text)
    several = [texts for prompt, texts in groups.items() if prompt and len(texts) > 1]
    most = Counter(plain).most_common(1)[0][1]
    lengths = sorted(map(len, plain))
    # A short answer need not be a sentence, and is not cut for being none.
    long_from = max(80, lengths[int(0.75 * (n - 1))] * 0.8)

    def share(flags: list[bool]) -> float:
        return sum(flags) / n

    return RolloutFacts(
        count=n,
        prompts=len(groups),
        constant=most / n if len(groups) >= 3 else 0.0,
        alike=sum(len(set(texts)) == 1 for texts in several) / len(several) if several else 0.0,
        empty=share([not any(c.isalnum() for c in text) for text in plain]),
        repeating=share([loops(answer.text) for answer in answers]),
        cut=share([len(p) >= long_from and is_cut(a.text) for a, p in zip(answers, plain, strict=True)]),
        template=share([has_template(answer.text) for answer in answers]),
        mixed=share([is_mixed(answer) for answer in answers]),
    )


def loops(text: str) -> bool:
    """Whether a text ends in one stretch of up to 200 characters four times over or more."""
    tail = " ".join(text[-_LOOKED_AT:].split())[-1200:]
    for period in range(1, min(200, len(tail) // 4) + 1):
        times = 12 if period < 4 else 4
        if len(tail) >= times * period and tail[-period:] * times == tail[-times * period :]:
            # Rules and dots are typography.
            return any(c.isalnum() for c in tail[-period:])
    return False


def is_cut(text: str) -> bool:
    """Whether a text stops in the middle of a sentence: on a letter, comma or operator, with no token of its end."""
    bare = text[-_LOOKED_AT:].rstrip()
    return bool(bare) and not _END_TOKENS.search(bare) and not _ENDS.search(bare) and not bare[-1].isdigit()


def has_template(text: str) -> bool:
    """Whether a text holds a chat template's tokens or role headings before its very end."""
    return _TEMPLATE.search(_END_TOKENS.sub("", text[-_LOOKED_AT:])) is not None


def is_mixed(answer: Answer) -> bool:
    """Whether a script that the prompt does not use makes up a tenth of the answer's letters or more."""
    scripts = _scripts(answer.text[-2000:])
    letters = sum(scripts.values())
    if letters < 40:
        return False
    asked = _scripts(answer.prompt[-2000:])
    main = scripts.most_common(1)[0][0]
    foreign = sum(count for script, count in scripts.items() if script != main and not asked.get(script))
    return foreign >= 0.1 * letters


def _scripts(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for character in text:
        if character.isalpha():
            name = "LATIN" if character.isascii() else unicodedata.name(character, "").split(" ")[0]
            if _SCRIPTS.fullmatch(name):
                counts["KANA" if name in ("HIRAGANA", "KATAKANA") else name] += 1
    return counts
