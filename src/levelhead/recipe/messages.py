"""What is said of a recipe that cannot be read, in English and Chinese."""

from __future__ import annotations

from typing import Any

from pydantic_core import ErrorDetails

from levelhead.message import Message, Phrase

AT = Message("{place}: {text}", "{place}：{text}")
"""Something about a file, an option or a key."""
OF_A_KEY = Message("{place}: {key}: {text}", "{place}: {key}：{text}")
NO_RECIPE = Message("no such recipe; {hint}", "没有这份配方；{hint}")
LISTED = Message("levelhead recipes lists those that ship", "levelhead recipes 列出随包附带的配方")
SHIPS = Message("did you mean {near!r}, which ships?", "是不是随包附带的 {near!r}？")
UNREADABLE = Message("cannot be read as a recipe: {why}", "无法作为配方读取：{why}")
RUN_FOLDER = Message(
    "is the folder of a run; to go on with it: levelhead train {place}/recipe.yaml --out {place} --resume",
    "是一次运行的文件夹；继续训练：levelhead train {place}/recipe.yaml --out {place} --resume",
)
NO_MAPPING = Message("a recipe is a mapping of keys, found {kind}", "配方应为键的映射，现为 {kind}")
SET = Message(
    "--set {pair}: expected key=value, for example --set grpo.steps=20",
    "--set {pair}：应为 key=value，例如 --set grpo.steps=20",
)
SET_VALUE = Message("--set {pair}: the value is {why}", "--set {pair}：值{why}")
SET_INDEX = Message(
    "--set {pair}: {key} is a list of {n}; name an item by its index",
    "--set {pair}：{key} 是有 {n} 项的列表；请用序号指明其中一项",
)
SET_SECTION = Message("--set {pair}: {key} holds a value, not a section", "--set {pair}：{key} 是一个值，不是一组键")
UNKNOWN = Message("{place}: unknown key {key!r}{hint}", "{place}：未知的键 {key!r}{hint}")
THEIRS = Message("; {peer}'s {theirs} is {ours!r} here", "；{peer} 的 {theirs} 在这里是 {ours!r}")
NEAR = Message("; did you mean {near!r}?", "；是不是 {near!r}？")
MISSING = Message("missing", "缺少")
ONE_OF = Message("must be one of {choices}, got {value!r}", "应为 {choices} 之一，现为 {value!r}")
VALUE = Message("{text} (got {value})", "{text}，现为 {value}")
_PYDANTIC = {
    "bool_parsing": "应为真假值",
    "bool_type": "应为真假值",
    "dict_type": "应为键的映射",
    "finite_number": "应为有限的数",
    "float_parsing": "应为数",
    "float_type": "应为数",
    "greater_than": "应大于 {gt}",
    "greater_than_equal": "应不小于 {ge}",
    "int_from_float": "应为整数",
    "int_parsing": "应为整数",
    "int_type": "应为整数",
    "less_than": "应小于 {lt}",
    "less_than_equal": "应不大于 {le}",
    "list_type": "应为列表",
    "literal_error": "应为 {expected} 之一",
    "model_type": "应为一组键",
    "string_pattern_mismatch": "应符合 {pattern}",
    "string_type": "应为文本",
    "too_long": "最多 {max_length} 项",
    "too_short": "至少 {min_length} 项",
}
"""Chinese of pydantic's own messages, by their type and with their fields."""


def problem(error: ErrorDetails) -> Phrase:
    """Return what pydantic, or a validator of ours, says of a value; in English alone where there is no Chinese."""
    context: dict[str, Any] = error.get("ctx") or {}
    raised = context.get("error")
    if isinstance(raised, ValueError) and raised.args and isinstance(raised.args[0], Phrase):
        return raised.args[0]
    shown = {name: value.replace(" or ", ", ") if isinstance(value, str) else value for name, value in context.items()}
    chinese = _PYDANTIC[error["type"]].format_map(shown) if error["type"] in _PYDANTIC else context.get("zh", "")
    return Phrase(error["msg"].removeprefix("Value error, "), chinese)
