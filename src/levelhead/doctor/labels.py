"""Headings and single words of the doctor's reports, in both languages."""

from __future__ import annotations

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language, Text
from levelhead.doctor.table import Table

LABELS: dict[str, Text] = {
    "healthy": Text("healthy", "健康"),
    "learns": Text("learns", "在学习"),
    "undecided": Text("undecided", "无法判断"),
    "warning": Text("warning", "警告"),
    "critical": Text("critical", "严重"),
    "info": Text("note", "提示"),
    "rows": Text("rows", "行"),
    "format": Text("read as", "识别为"),
    "steps": Text("steps", "第"),
    "curves": Text("curves", "曲线"),
    "log-scale": Text("logarithmic scale", "对数刻度"),
    "dashed": Text("dashed line", "虚线"),
    "confidence": Text("confidence", "置信度"),
    "since": Text("since step", "始于第"),
    "for": Text("for", "支持的证据"),
    "against": Text("against", "不支持的证据"),
    "evidence": Text("rows that show it", "相关数据"),
    "differs": Text("not to be confused", "容易混淆"),
    "confirm": Text("would confirm it", "如何确认"),
    "remedies": Text("change", "建议修改"),
    "mechanism": Text("how it comes about", "成因"),
    "explains": Text("explains", "由此引起"),
    "also": Text("also seen", "另见"),
    "unread": Text("not read", "未能读取"),
    "guard": Text("what the guard did", "守护器的动作"),
    "source": Text("source", "出处"),
    "meaning": Text("what it means", "含义"),
    "because": Text("because", "原因"),
    "severity": Text("severity when sure", "确定时的严重程度"),
    "seen_by": Text("seen by", "由谁发现"),
}


def in_language(table: Table, language: Language) -> Table:
    """Return a table with its title, its headings and the words of its first two columns in a language."""
    rows = tuple(tuple(said(cell, language) for cell in row[:2]) + row[2:] for row in table.rows)
    return Table(said(table.title, language), tuple(said(head, language) for head in table.header), rows)


_MARKS = {",": "\uff0c", ":": "\uff1a", ";": "\uff1b", "(": "\uff08", ")": "\uff09"}


def mark(sign: str, language: Language) -> str:
    """Return a mark of punctuation with the space that it has around it: one of ``,``, ``:``, ``;``, ``(``, ``)``."""
    if language == "zh":
        return _MARKS[sign]
    return {"(": " (", ")": ")"}.get(sign, f"{sign} ")


def in_brackets(text: str, language: Language) -> str:
    """Return text in brackets, to stand behind a word."""
    return f"{mark('(', language)}{text}{mark(')', language)}"


def since(step: object, language: Language) -> str:
    """Return since which step something stands: ``since step 12``."""
    return f"{label('since', language)} {step}" + (" 步" if language == "zh" else "")


def label(key: str, language: Language = "en") -> str:
    """A heading or word of a report."""
    return LABELS[key].get(language)
