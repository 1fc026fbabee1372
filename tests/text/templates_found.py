"""Chat templates to hold promises on: ours in the shape of public ones, and the originals where there are any."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from tokenizers import AddedToken

from levelhead.errors import InputError
from levelhead.records import ChatOptions
from levelhead.text.codec import Codec
from levelhead.text.stops import PROBE_TOOL
from levelhead.text.thoughts import REASONING_FIELDS, Thought, clash, opened_by
from levelhead.text.tiny import train_tokenizer

OURS = Path(__file__).parent / "templates"
_CONTROL = re.compile(
    r"<\|[\w./: =\"-]+?\|>|<\uff5c[^<>\uff5c]+\uff5c>|<(?:start|end)_of_\w+>|<\w+\|>|<\|\w+>|\[/?[A-Z_]{3,}\]|"
    r"\[gMASK\]|<sop>|</?s>|<seed:\w+>|<SPECIAL_\d+>|\]~!?b\[?\]?|\[e~\["
)
"""What templates write as special tokens."""
TAG = re.compile(r"<[\w:.-]*think[\w:.-]*>|\[THINK\]|<\|START_THINKING\|>")
"""What opens a thought."""


ROOT = Path(__file__).parents[2]
PUBLIC = Path(os.environ.get("LEVELHEAD_CHAT_TEMPLATES", ROOT / "build" / "chat-templates"))
"""Where ``python tests/text/public_templates.py`` has put the originals."""


def originals(folder: Path = PUBLIC) -> list[Path]:
    """Files of public templates, sorted; none where there are none on this machine."""
    return sorted(folder.rglob("*.jinja"), key=lambda file: (file.stem.lower(), file))


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


QUESTION = {"role": "user", "content": "Question"}
HEAD = """# Public chat templates

What Levelhead makes of the chat templates that TRL and llama.cpp publish: all that the packages `trl` 1.16.0 and
`llama-cpp-python` 0.3.36 hold. Of each template that is not refused, tests render random conversations and hold
that a demonstration is what follows the generation prompt, that a thought is opened and closed once, and that one stop
token ends it ([tokens](tokens.md#thoughts)).

```sh
python tests/text/public_templates.py build/chat-templates --page docs/chat-templates.md
python -m pytest tests/text/test_templates.py
```

*Prompt*: what the generation prompt holds of a thought (nothing, the tag that opens one, or a thought that is closed).
*Earlier thoughts*: whether a later prompt still shows the thought of an earlier answer. *Reads*: the field of an
assistant message that a thought may stand in, besides its content. *Tools*: whether they are shown, and whether a call
can be a demonstration; what cannot is an error. *Ends with*: the token that closes an answer.

| template | from | prompt | earlier thoughts | reads | tools | ends with |
|---|---|---|---|---|---|---|
"""


def page(folder: Path = PUBLIC) -> str:
    """The page with a row for each public template."""
    return HEAD + "".join(f"| {' | '.join(row(file))} |\n" for file in originals(folder))


def row(file: Path) -> list[str]:
    """What a codec makes of a template: name, source, and the columns of the page."""
    codec, name = codec_for(file), [file.stem, file.parent.name]
    if isinstance(codec, str):
        return [*name, f"refused: {codec.partition(';')[0].partition(' (')[0]}", "", "", "", ""]
    try:
        prompt = codec.template.render([QUESTION], generation_prompt=True).text
    except InputError as error:
        return [*name, f"refused: {str(error).partition('; ')[0]}", "", "", "", ""]
    thought = opened_by(prompt)
    tag = tags(prompt)
    return [
        *name,
        tag,
        thoughts_kept(codec, thought),
        reads(codec),
        tools(codec),
        f"`{codec.stops[0].text}`".replace("|", "\\|"),
    ]


def tags(prompt: str) -> str:
    """What a generation prompt holds of a thought."""
    if opened_by(prompt).start is not None:
        return f"opens `{opened_by(prompt).tag}`".replace("|", "\\|")
    return "a closed thought" if clash(prompt, "</think>") else ""


def thoughts_kept(codec: Codec, thought: Thought) -> str:
    """Whether a later prompt shows an earlier thought."""
    spoken = {"role": "assistant", "content": f"{thought.tag}\nReasons\n{thought.closer}\n\nAnswer"}
    answers = [spoken, *({"role": "assistant", "content": "Answer", field: "Reasons"} for field in REASONING_FIELDS)]
    for answer in answers:
        with suppress(InputError):
            text = codec.template.render([QUESTION, answer, QUESTION], generation_prompt=True).text
            if "Reasons" in text:
                return "kept"
    return "dropped"


def tools(codec: Codec) -> str:
    """Whether tools are shown, and whether a call of one can be a demonstration."""
    call = {"type": "function", "id": "call00001", "function": {"name": "probe", "arguments": {"word": "Answer"}}}
    options, shown = ChatOptions(tools=(PROBE_TOOL,)), ""
    with suppress(InputError):
        codec.render([QUESTION], options)
        shown = "shown"
        codec.demonstration([QUESTION], {"role": "assistant", "content": "", "tool_calls": [call]}, options)
        shown = "shown, called"
    return shown


def reads(codec: Codec) -> str:
    """The field that a thought is read from."""
    for field in REASONING_FIELDS:
        with suppress(InputError):
            codec.demonstration([QUESTION], {"role": "assistant", "content": "Answer", field: "Reasons"})
            return f"`{field}`"
    return ""
