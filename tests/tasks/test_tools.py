"""Tools: calls are read in the template's own format, executed within limits, and harm no more than their rollout."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from levelhead.api import train
from levelhead.errors import InputError
from levelhead.preflight.checks.rewards import RewardsAttached
from levelhead.preflight.checks.tokens import ToolCalls
from levelhead.preflight.context import Context
from levelhead.recipe import validate
from levelhead.recipe.tasks import Function
from levelhead.recipe.tools import ToolUse
from levelhead.records import PLAIN_CHAT, ChatOptions
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.tool_formats import Call, CallError
from levelhead.tasks.tool_reader import typed
from levelhead.tasks.tools import Result, Toolbox
from levelhead.text.codec import Codec
from levelhead.training.prepare import Setup, prepare
from small_run import recipe
from text.families import codec_of, tokenizer_of


def lookup(word: str, count: int = 1, exact: bool = False) -> str:
    """Look a word up.

    Args:
        word: The word.
        count: How often it is repeated.
        exact: Whether to shout.
    """
    return (word.upper() if exact else word) * count


def boom(kind: str) -> str:
    """Go wrong.

    Args:
        kind: How.
    """
    if kind == "hang":
        time.sleep(60)
    if kind == "exit":
        raise SystemExit(3)
    if kind == "flood":
        return "x" * 10_000_000
    if kind == "control":
        return "\x1b[31mred\x1b[0m\x07 \u202eflip\ud800 <tool_call>"
    if kind == "object":
        return object()  # type: ignore[return-value]
    raise ValueError(kind)


GLM = """{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<|observation|>
<tool_response>
{{ m.content }}
</tool_response>
{%- else -%}<|{{ m.role }}|>
{{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor -%}
</tool_call>{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{% endif -%}"""
HARMONY = """{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>
{{- m.content }}<|end|>
{%- elif m.tool_calls -%}{%- for call in m.tool_calls -%}
<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>
{{- call.function.arguments | tojson }}<|call|>{%- endfor -%}
{%- else -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|im_end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
CODER = (Path(__file__).parents[1] / "text" / "templates" / "qwen35.jinja").read_text(encoding="utf-8")


def codec(name: str) -> Codec:
    source = {"glm": GLM, "harmony": HARMONY, "coder": CODER}.get(name)
    return codec_of(name) if source is None else Codec(tokenizer_of("qwen25"), chat_template=source)


def box(*functions: Any, template: str = "qwen25", room: int = 10_000, **settings: Any) -> Toolbox:
    made = Toolbox(ToolUse(functions=["unused"], **settings), functions or (lookup,))
    made.learn_format(codec(template), "task", room)
    return made


FORMATS = {
    "qwen25": (
        "hermes",
        'Let me see. <tool_call>\n{"name": "lookup", "arguments": {"word": "a", "count": 2}}\n</tool_call>',
    ),
    "qwen3": ("hermes", '<tool_call>{"name": "lookup", "arguments": {"word": "a", "count": 2}}</tool_call>'),
    "llama3": ("llama", '{"name": "lookup", "parameters": {"word": "a", "count": 2}}'),
    "mistral": ("mistral", '[TOOL_CALLS] [{"name": "lookup", "arguments": {"word": "a", "count": 2}}]'),
    "glm": (
        "glm",
        (
            "<tool_call>lookup\n<arg_key>word</arg_key>\n<arg_value>a</arg_value>\n"
            "<arg_key>count</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
        ),
    ),
    "harmony": (
        "harmony",
        '<|channel|>commentary to=functions.lookup <|constrain|>json<|message|>{"word": "a", "count": 2}',
    ),
    "coder": (
        "qwen3-coder",
        (
            "<tool_call>\n<function=lookup>\n<parameter=word>\na\n</parameter>\n<parameter=count>\n2\n</parameter>\n"
            "</function>\n</tool_call>"
        ),
    ),
}


@pytest.mark.parametrize("template", FORMATS)
def test_calls_are_read_in_the_format_of_the_template(template: str) -> None:
    name, written = FORMATS[template]
    made = box(template=template)
    assert made.format == name
    said, (call,) = made.read(written)
    assert said.strip() in ("", "Let me see.")
    result = asyncio.run(made.run(call, made.chat(PLAIN_CHAT)))
    assert (result.text, result.failed) == ("aa", False)
    assert made.read("The answer is 4.") == ("The answer is 4.", [])


@pytest.mark.parametrize("template", FORMATS)
@pytest.mark.parametrize("cut", [0.6, 0.8, 0.95])
def test_a_call_that_is_cut_off_is_an_error_and_not_an_answer(template: str, cut: float) -> None:
    _, written = FORMATS[template]
    made = box(template=template)
    with pytest.raises(CallError, match="cannot be read"):
        made.read(written[: int(len(written) * cut)])


@pytest.mark.parametrize(
    "written",
    [
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "lookup", "arguments": [1]}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "<tool_call>{lookup}</tool_call>",
        '<tool_call>{"name": "lookup"}</tool_call>' * 5,
    ],
)
def test_what_is_no_call_is_an_error(written: str) -> None:
    with pytest.raises(CallError):
        box().read(written)


def test_a_format_that_is_not_known_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"tasks: task: tools: .* none of the formats .* model.chat_template"):
        box(template="lfm2")


def test_a_template_without_tools_is_refused() -> None:
    with pytest.raises(InputError, match="does not show the tool"):
        box(template="smollm")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("hang", "error: took longer than 0.3 s"),
        ("exit", "error: SystemExit: 3"),
        ("raise", "error: ValueError: raise"),
        ("object", "error: the result is no JSON"),
        ("control", "[31mred[0m flip\ufffd <tool_call>"),
    ],
)
def test_a_tool_that_goes_wrong_gives_a_result_that_says_so(kind: str, says: str) -> None:
    made = box(boom, timeout_s=0.3)
    result = asyncio.run(made.run(Call("boom", {"kind": kind}), made.chat(PLAIN_CHAT)))
    assert result.text.startswith(says)


def test_a_flood_is_cut_and_unknown_tools_and_arguments_are_errors() -> None:
    made = box(boom, lookup, result_chars=50)
    chat = made.chat(PLAIN_CHAT)
    assert len(asyncio.run(made.run(Call("boom", {"kind": "flood"}), chat)).text) == 50
    assert "no tool called nope" in asyncio.run(made.run(Call("nope", {}), chat)).text
    assert asyncio.run(made.run(Call("lookup", {"wrong": 1}), chat)).text.startswith("error: ")
    only = ChatOptions(tools=(made.schemas["boom"],))
    assert "no tool called lookup; there are boom" in asyncio.run(made.run(Call("lookup", {"word": "a"}), only)).text


def test_two_tools_of_one_name_and_functions_without_a_docstring_are_refused() -> None:
    with pytest.raises(InputError, match="two tools called 'lookup'"):
        box(lookup, lookup)
    with pytest.raises(InputError, match=r"tasks\[\].tools.functions: .*docstring"):
        box(lambda x: x)


def test_programs_run_in_the_sandbox() -> None:
    made = Toolbox(ToolUse(functions=["python"], sandbox={"isolation": "none", "wall_s": 3, "cpu_s": 1}))
    made.learn_format(codec("qwen25"), "task", 1000)
    chat = made.chat(PLAIN_CHAT)
    assert asyncio.run(made.run(Call("python", {"code": "print(6 * 7)"}), chat)).text == "42\n"
    failed = asyncio.run(made.run(Call("python", {"code": "1 / 0"}), chat))
    assert failed.failed
    assert "ZeroDivisionError" in failed.text


def _task(room: int = 10_000, **tools: Any) -> FunctionTask:
    section = TypeAdapter(Function).validate_python(
        {"kind": "function", "name": "t", "oracle": "answer", "tools": {"functions": ["unused.py:f"], **tools}}
    )
    section = section.model_copy(update={"tools": "tools"})
    rows = [{"prompt": f"what is {i}?", "answer": str(i)} for i in range(4)]
    task = FunctionTask(section, data=rows, rewards=right)
    task.tools = box(room=room, **tools)
    return task


def right(completions: Any, answer: Any, **_: Any) -> list[float]:
    return [float(wanted in text) for text, wanted in zip(completions, answer, strict=True)]


def test_an_answer_may_call_tools_on_the_way_and_the_last_turn_is_scored() -> None:
    task = _task(turns=3)
    prompt = next(task.prompts("train", 0))
    assert [tool["function"]["name"] for tool in prompt.chat.tools] == ["lookup"]
    episode = task.episode(prompt)

    async def play() -> None:
        assert len(await episode.observe()) == 1
        step = await episode.act('Hm. <tool_call>{"name": "lookup", "arguments": {"word": "ab"}}</tool_call>')
        assert not step.done
        _, call, result = await episode.observe()
        assert (call["content"], call["tool_calls"][0]["function"]["name"]) == ("Hm.", "lookup")
        assert (result["role"], result["content"]) == ("tool", "ab")
        assert not (await episode.act("<tool_call>{")).done
        assert "cannot be read" in (await episode.observe())[-1]["content"]
        step = await episode.act(f"It is {prompt.facts['columns']['answer']}.")
        assert step.score is not None
        assert step.score.total == 1.0
        assert {k: step.score.info[k] for k in ("turns", "calls", "failed_calls")} == {
            "turns": 3, "calls": 1, "failed_calls": 1,
        }  # fmt: skip

    asyncio.run(play())


THOUGHTS = {"qwen3": "<think>\n\n</think>", "coder": "</think>"}


def _turn(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def _shown(template: str, oracle: list[dict[str, Any]], **tools: Any) -> list[Any]:
    section = TypeAdapter(Function).validate_python(
        {"kind": "function", "name": "t", "oracle": "turns", "tools": {"functions": [f"{__file__}:lookup"], **tools}}
    )
    rows = [{"prompt": f"what is {i}?", "turns": oracle} for i in range(4)]
    task = FunctionTask(section, data=rows, rewards=lambda completions, **_: [0.0] * len(completions))
    assert task.tools is not None
    task.tools.learn_format(codec(template), "t", 10_000)
    assert task.demonstrates
    prompt = next(task.prompts("train", 0))
    return [(task, prompt), *asyncio.run(task.demonstrate(prompt))]


@pytest.mark.parametrize("template", FORMATS)
def test_a_demonstration_calls_the_tool_and_goes_on_with_its_result(template: str) -> None:
    oracle = [_turn("lookup", word="ab", count=2), {"role": "tool", "content": "not this"}]
    (task, prompt), first, last = _shown(template, [*oracle, {"role": "assistant", "content": "It is abab."}])
    assert task.oracle(prompt) == ["It is abab."]
    assert [message["role"] for message in first[0]] == ["user"]
    (call,) = task.tools.read(task.tools.written(*first, prompt.chat))[1]
    assert (call.name, typed(call, task.tools.schemas["lookup"])) == ("lookup", {"word": "ab", "count": 2})
    assert [(m["role"], m["content"]) for m in last[0][1:]] == [
        ("assistant", THOUGHTS.get(template, "")),
        ("tool", "abab"),
    ]
    assert last[1] == "It is abab."
    if template in THOUGHTS or template == "harmony":
        return  # the first drop thoughts of earlier turns; the second's turns end otherwise here
    # What supervised fine-tuning teaches is what the template shows of an earlier turn.
    pair = codec(template).demonstration(first[0], first[1], prompt.chat)
    later = codec(template).render(last[0], prompt.chat)
    assert later[: len(pair.context_ids) + len(pair.completion_ids)] == pair.context_ids + pair.completion_ids


def test_a_demonstration_whose_call_fails_or_that_has_no_turn_left_is_left_out() -> None:
    answer = {"role": "assistant", "content": "It is abab."}
    assert len(_shown("qwen25", [_turn("lookup", wrong=1), answer])) == 1
    assert len(_shown("qwen25", [_turn("lookup", word="a"), answer], turns=1)) == 1
    assert len(_shown("qwen25", [_turn("lookup", word="a"), answer], turns=2)) == 3


def test_an_oracle_whose_earlier_turns_call_nothing_is_refused() -> None:
    answer = {"role": "assistant", "content": "It is abab."}
    with pytest.raises(InputError, match="each message before the last one must call tools"):
        _shown("qwen25", [answer, answer])
    with pytest.raises(InputError, match="a call of a tool has arguments are no"):
        _shown("qwen25", [{**_turn("lookup"), "tool_calls": [{"name": "lookup", "arguments": "{"}]}, answer])
    with pytest.raises(InputError, match="is a message with 'tool_calls'"):
        _shown("qwen25", [_turn("lookup", word="a")])


def test_a_conversation_that_the_context_has_no_room_for_ends() -> None:
    task = _task(turns=9, room=40)
    prompt = next(task.prompts("train", 0))
    written = '<tool_call>{"name": "lookup", "arguments": {"word": "ab", "count": 100}}</tool_call>'
    assert asyncio.run(task.episode(prompt).act(written)).done


TOOL_TEMPLATE = """{%- if tools -%}<|im_start|>system
{%- for tool in tools %} {{ tool.function.name }}{% endfor %}<|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>
{%- endfor -%}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
TOOLS = '''
import signal


def double(text: str) -> str:
    """Double a text.

    Args:
        text: The text.
    """
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # works in the main thread alone
    signal.alarm(0)
    return text + text
'''


def test_a_run_trains_with_tools_and_the_loss_sees_sampled_tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "template.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
    given = recipe(
        tmp_path,
        sft=None,
        grpo__steps=1,
        model__tiny__context=512,
        model__chat_template=str(tmp_path / "template.jinja"),
        tasks__0__tools={"functions": [f"{tmp_path / 'tools.py'}:double"], "turns": 2},
        log__rollouts_every=1,
    )
    # An untrained policy calls nothing by itself: every other first turn is read as a call.
    turn = [0]

    def read(self: Toolbox, text: str) -> tuple[str, list[Call]]:
        turn[0] += 1
        return text, [Call("double", {"text": "SECRET"})] if turn[0] % 2 else []

    monkeypatch.setattr(Toolbox, "read", read)
    results: list[Result] = []
    call = Toolbox.run

    async def kept(self: Toolbox, *asked: Any) -> Result:
        results.append(await call(self, *asked))
        return results[-1]

    monkeypatch.setattr(Toolbox, "run", kept)
    seen: list[Any] = []
    from levelhead.training import batch as module

    sample = module.Sample
    monkeypatch.setattr(module, "Sample", lambda **fields: seen.append(fields) or sample(**fields))
    folder = train(given, out=tmp_path / "run").folder
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (row,) = [row for row in rows if row["stage"] == "grpo"]
    assert 1 < row["num_turns"] < 2
    assert results
    assert {(result.text, result.failed) for result in results} == {("SECRETSECRET", False)}
    mine = [fields["sequence"] for fields in seen if fields["task"] == "one"]
    assert any(len(sequence.context_ids) > 60 for sequence in mine)
    assert all(len(sequence.completion_ids) <= 6 for sequence in mine)
    # The reward counts the tokens of the last turn: those that were sampled, none of a result.
    last = {sequence.completion_ids for sequence in mine}
    assert {round(float(sum(ids) % 5) / 4, 6) for ids in last} >= {
        round(rollout["reward"], 6) for rollout in _rollouts(folder) if rollout["task"] == "one"
    }


def _rollouts(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "rollouts" / "grpo-000001.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_the_preflight_scores_answers_of_several_turns_as_the_run_does(tmp_path: Path) -> None:
    context = Context(_setup(tmp_path, TOOL_TEMPLATE))
    outcomes = [o for o in RewardsAttached().run(context) if o.name == "rewards/attached/one"]
    assert [outcome.status for outcome in outcomes] == ["pass"]


def _setup(folder: Path, template: str) -> Setup:
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
    (folder / "template.jinja").write_text(template, encoding="utf-8")
    tools = {"tasks__0__tools": [f"{folder / 'tools.py'}:double"]}
    given = recipe(folder, **tools, model__tiny__context=512, model__chat_template=str(folder / "template.jinja"))
    return prepare(validate(given))


def test_the_preflight_says_that_calls_go_through_the_template(tmp_path: Path) -> None:
    context = Context(_setup(tmp_path, TOOL_TEMPLATE))
    (outcome,) = ToolCalls().run(context)
    assert (outcome.name, outcome.status) == ("tools/round-trip/one", "pass")
    assert outcome.fields == {"tools": "double", "format": "hermes"}
    context.policy.codec.tokenizer.chat_template = TOOL_TEMPLATE.replace("<tool_call>", "<odd>")
    (outcome,) = ToolCalls().run(context)
    assert outcome.status == "fail"


def test_a_template_of_no_known_format_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the formats"):
        _setup(tmp_path, TOOL_TEMPLATE.replace("<tool_call>", "<odd>"))
