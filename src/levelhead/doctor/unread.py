"""Why something of a log was not read, in the language of the report; the readers say it in English."""

from __future__ import annotations

import re

from levelhead.diagnosis.findings import Language

_CHINESE: tuple[tuple[str, str], ...] = (
    (r"a record of impossible length; the rest of the file is not read", "记录长度不可能成立\uff0c文件其余部分未读取"),
    (r"the file ends inside a record", "文件在一条记录中间结束"),
    (r"a damaged record; reading goes on at the next block", "记录已损坏\uff0c从下一个数据块继续读取"),
    (r"columns of other runs: (.*)", "其他训练的列\uff1a{}"),
    (r"a brace that was never closed", "有一个花括号始终没有闭合"),
    (
        r"the line ends in the middle of a number; that number was left out",
        "这一行在一个数字中间结束\uff0c该数字未采用",
    ),
    (r"a quality line without fallback=True or False", "质量行缺少 fallback=True 或 False"),
    (r"(\d+) other files? of the folder", "文件夹中的另外 {} 个文件"),
    (
        r"another run starts after (\d+) rows; the run with the most rows is diagnosed",
        "第 {} 行之后开始了另一次训练\uff1b诊断的是行数最多的那一次",
    ),
    (r"not a line of JSON", "不是一行 JSON"),
    (r"not a step record", "不是训练步的记录"),
    (r"(\d+) more", "还有 {} 处"),
    (r"holds more than (\d+) runs; give folders inside it", "训练超过 {} 次\uff0c请指定其中的文件夹"),
    (r"no training metrics found \(read as '(.*)'\)\.", "没有找到训练指标\uff08识别为 {}\uff09。"),
    (r"no training metrics: the run ended before its first row\.", "没有训练指标\uff1a训练在写出第一行之前就结束了。"),
    (r"no log in this folder; give the path of the log file itself", "该文件夹中没有日志\uff0c请直接指定日志文件"),
    (r"cannot be read \((.*)\)", "无法读取\uff08{}\uff09"),
)


def reason(why: str, language: Language = "en") -> str:
    """Return why something was not read.

    Args:
        why: What a reader said, in English.
        language: Of the report; what has no wording in it stays as it is.
    """
    if language == "zh":
        for pattern, words in _CHINESE:
            if match := re.fullmatch(pattern, why):
                return words.format(*match.groups())
    return why
