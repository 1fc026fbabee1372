"""Chat templates to hold promises on: ours in the shape of public ones, and the originals where there are any."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken

from levelhead.errors import InputError
from levelhead.text.codec import Codec
from levelhead.text.tiny import train_tokenizer

OURS = Path(__file__).parent / "templates"
_CONTROL = re.compile(
    r"<\|[\w./: =\"-]+?\|>|<\uff5c[^<>\uff5c]+\uff5c>|<(?:start|end)_of_\w+>|<\w+\|>|<\|\w+>|\[/?[A-Z_]{3,}\]|"
    r"\[gMASK\]|<sop>|</?s>|<seed:\w+>|<SPECIAL_\d+>|\]~!?b\[?\]?|\[e~\["
)
"""What templates write as special tokens."""
TAG = re.compile(r"<[\w:.-]*think[\w:.-]*>|\[THINK\]|<\|START_THINKING\|>")
"""What opens a thought."""


def originals() -> list[Path]:
    """Files of public templates, sorted; none where there are none on this machine."""
    folders = [Path(name) for name in os.environ.get("LEVELHEAD_CHAT_TEMPLATES", "").split(os.pathsep) if name]
    trl = importlib.util.find_spec("trl")
    if trl is not None and trl.submodule_search_locations:
        folders.append(Path(next(iter(trl.submodule_search_locations))) / "chat_templates")
    return sorted(file for folder in folders for file in folder.glob("*.jinja") if "_training" not in file.name)


@cache
def codec_for(file: Path) -> Codec | str:
    """The codec of a template with a small tokenizer that has its control tokens; why not, where it is refused."""
    source = file.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(["the user asked who was late and why; think of 3 + 4 = 7"] * 3, 320)
    controls = sorted(set(_CONTROL.findall(source)) | {"<s>", "</s>"} - {"[THINK]", "[/THINK]"})
    tokenizer.add_special_tokens({"bos_token": "<s>", "extra_special_tokens": controls})
    plain = ["<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>"]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    try:
        return Codec(tokenizer, chat_template=source)
    except InputError as error:
        return str(error)
