"""What a check that did not pass shows in Chinese, and what of it is still English."""

from __future__ import annotations

import re

from in_chinese import english
from levelhead.preflight.chinese import told, told_in
from levelhead.preflight.result import Check

TERMS = {
    "id", "dropout", "x", "i", "k", "n", "r", "t", "z", "e", "M", "GiB", "nan", "inf", "eos", "ddof", "AdamW", "Adam",
    "DAPO", "DeepSeekMath", "PPO", "HTTP", "http", "https", "dict", "list", "Windows", "FILE", "Landlock",
    "bubblewrap", "PreTrainedTokenizerFast", "TokenizersBackend", "transformers", "model", "sft", "stop", "custom",
    "estimator", "gradient", "plain", "importance", "shaping", "rloo", "dual", "clip", "k1", "k2", "k3",
}  # fmt: skip
"""Further terms, and keys and values of a recipe that are one word."""
NAMES = {"echo", "math", "fairness", "faithfulness", "data", "answer", "yes", "another", "mine"}
"""Tasks, columns and items of the tests that stand in messages without quotes."""
QUOTED = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|<[^<>]*>|\[[\d, ]*\]"
    r"|\(?[A-Z]\w+ et al\. \d{4}\)?|LoRA Without Regret|奖励函数 \S+|最后一个\uff1a\S+"
)
"""What a model or a person wrote, parts of a model, special tokens, and papers."""
FOREIGN = re.compile(
    "(?:训练也会这样中断|更新中断|微批放不下)\uff1a.*|抛出 [^\uff08]*|\uff08HTTP \\d+\uff09\uff1a[^\uff1b]*"
    "|秒没有回复\uff08[^\uff09]*\uff09"
    "|float32 计算一遍\uff08.*\uff09|能做你的用户所能做的一切\uff1a.*|无法加载\uff1a.*|no wall holds"
)
"""What other programs say: Python, PyTorch, an endpoint, the system."""
SAID = ("source", "step", "judgements", "reasons", "measured_on")
"""Keys of evidence that hold sentences of the checks."""


def left(check: Check) -> set[str]:
    """Return the English words of what is shown of a check: its message, its way out, sentences of its evidence."""
    evidence = [value for key in SAID for value in _texts(told_in(check.evidence.get(key)))]
    lines = [told(check.message), *evidence, *([told(f"fix: {check.fix}")] if check.fix else ())]
    bare = [FOREIGN.sub("", QUOTED.sub("", line)) for line in lines]
    return english("\n".join(bare), TERMS | NAMES | set(check.name.split("/")))


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value] if isinstance(value, str) else []
