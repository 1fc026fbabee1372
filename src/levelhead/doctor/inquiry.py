"""What would settle an uncertain diagnosis: one or two questions, and what their answers are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from levelhead import metrics as metric
from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language, Text
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis
from levelhead.diagnosis.unfaulted import VERDICTS
from levelhead.doctor.informed import Argument
from levelhead.doctor.readers.keys import KeyMap
from levelhead.doctor.readers.values import NotANumberError, parse_number
from levelhead.doctor.runconfig import GROUP_SIZE, KL_COEF, LEARNING_RATE, MAX_LENGTH, TEMPERATURE, RunSettings
from levelhead.errors import InputError

CERTAIN = 0.8
"""Confidence of the first finding from which nothing is asked."""
APART = 0.2
"""Lead of the first finding over the second under which the two are to be told apart."""
_MOST = 2


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to find out.

    Attributes:
        key: What an answer is given under: ``--answer KEY=VALUE``.
        text: The question.
        command: How to find out, where there is more to do than to look.
        choices: The words that an answer may be; empty for a number.
    """

    key: str
    text: Text
    command: str = ""
    choices: tuple[str, ...] = ()


_PRINT = "print(tokenizer.decode(output_ids[0], skip_special_tokens=False))"
QUESTIONS: dict[str, Question] = {
    question.key: question
    for question in (
        Question(
            GROUP_SIZE,
            Text("How many answers are drawn for a prompt?", "每道题采样几个回答\uff1f"),
            "num_generations / rollout.n",
        ),
        Question(LEARNING_RATE, Text("What is the learning rate?", "学习率是多少\uff1f")),
        Question(
            KL_COEF,
            Text(
                "What is beta, the weight of the KL penalty? Is it 0?",
                "beta\uff08KL 惩罚的权重\uff09是多少\uff1f是 0 吗\uff1f",
            ),
        ),
        Question(
            MAX_LENGTH,
            Text("How many tokens may an answer have?", "回答最多允许多少 token\uff1f"),
            "max_completion_length",
        ),
        Question(TEMPERATURE, Text("At which temperature are answers drawn?", "采样温度是多少\uff1f")),
        Question(
            "held_out",
            Text(
                "Does a held-out score of the first and the last checkpoint rise, stay or fall?",
                "第一个和最后一个检查点的留出集得分相比\uff0c是升、持平还是降\uff1f",
            ),
            "evaluate both checkpoints on 200 held-out items",
            ("rises", "flat", "falls"),
        ),
        Question(
            "identical",
            Text("Are ten answers to one prompt all the same?", "同一道题的十个回答完全相同吗\uff1f"),
            "log_completions=True, or draw ten answers to one prompt",
            ("yes", "no"),
        ),
        Question(
            "perfect_reward",
            Text(
                "What does the reward function give an answer that is right and well formed?",
                "一个内容正确、格式也正确的回答\uff0c奖励函数给几分\uff1f",
            ),
            "print(reward_fn(prompts=[prompt], completions=[perfect_answer]))",
        ),
        Question(
            "answer_ends",
            Text(
                "How do the longest answers end: whole, cut while working, or in a loop?",
                "最长的回答是怎样结束的\uff1a完整结束、中途截断\uff0c还是陷入循环\uff1f",
            ),
            _PRINT,
            ("whole", "cut", "loop"),
        ),
        Question(
            "end_token",
            Text(
                "Does the first completion, printed with its tokens, hold the end-of-turn token?",
                "把第一条输出连同特殊 token 打印出来\uff0c里面有对话结束符吗\uff1f",
            ),
            _PRINT,
            ("yes", "no"),
        ),
        Question(
            "logp_difference",
            Text(
                "Before the first update: what is the mean |log-prob difference| of trainer and sampler?",
                "首次更新之前\uff0c训练端与采样端的对数概率平均相差多少\uff08绝对值\uff09\uff1f",
            ),
            "score one batch of rollouts in the trainer",
        ),
        Question(
            "gradients",
            Text(
                "Do any trainable parameters have a gradient after one backward pass?",
                "做一次反向传播之后\uff0c可训练参数有梯度吗\uff1f",
            ),
            "print(sum(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters()))",
            ("yes", "no"),
        ),
        Question(
            "best_answers",
            Text(
                "Scored by hand, are the ten best-rewarded answers right?",
                "人工检查奖励最高的十条输出\uff0c它们真的对吗\uff1f",
            ),
            "read the ten completions with the highest reward",
            ("right", "wrong"),
        ),
    )
}
"""Everything that may be asked, by key."""

_ASKED_FOR: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(VERDICTS, ("held_out", "best_answers")),
    "reward-dead-groups": ("identical", TEMPERATURE, GROUP_SIZE),
    "no-learning-signal-all-zero-reward": ("perfect_reward", "end_token"),
    "saturated-all-one-reward": ("best_answers", "held_out"),
    "deadlock": ("identical", TEMPERATURE),
    "constant-answer": ("identical", "held_out"),
    "zero-gradient-despite-signal": ("gradients", LEARNING_RATE),
    "entropy-collapse": ("identical", "held_out"),
    "entropy-explosion": (TEMPERATURE, LEARNING_RATE),
    "kl-blowup": (KL_COEF, LEARNING_RATE),
    "reference-drift": (KL_COEF, "held_out"),
    "lr-too-high": (LEARNING_RATE, KL_COEF),
    "gradient-spike": (LEARNING_RATE, "logp_difference"),
    "catastrophic-update": (LEARNING_RATE, "answer_ends"),
    "group-size-too-small": (GROUP_SIZE, "identical"),
    "advantage-two-valued": (GROUP_SIZE,),
    "length-truncation": (MAX_LENGTH, "answer_ends"),
    "length-runaway": ("answer_ends", MAX_LENGTH),
    "length-collapse": ("best_answers", "held_out"),
    "length-fixed": (MAX_LENGTH, "identical"),
    "eos-never": ("end_token", MAX_LENGTH),
    "logprob-mismatch": ("logp_difference", TEMPERATURE),
    "stale-policy": ("logp_difference",),
    "template-mismatch": ("perfect_reward", "end_token"),
    "reward-hacking": ("best_answers", "held_out"),
    "no-improvement": ("held_out", LEARNING_RATE),
    "nonfinite": (LEARNING_RATE, "logp_difference"),
}
_WORTH: dict[tuple[str, str], dict[str, float]] = {
    ("held_out", "rises"): {
        "no-improvement": -3.0,
        "reward-hacking": -3.0,
        "lr-too-high": -1.5,
        "kl-blowup": -1.0,
        "entropy-collapse": -1.5,
    },
    ("held_out", "flat"): {"no-improvement": 2.0, "reward-hacking": 0.8},
    ("held_out", "falls"): {"reward-hacking": 3.4, "no-improvement": 1.0, "kl-blowup": 0.5, "entropy-collapse": 0.5},
    ("identical", "yes"): {"deadlock": 2.5, "entropy-collapse": 2.0, "constant-answer": 2.0, "reward-dead-groups": 1.5},
    ("identical", "no"): {"deadlock": -2.0, "entropy-collapse": -2.0, "constant-answer": -2.5},
    ("answer_ends", "whole"): {"length-truncation": -2.5, "eos-never": -2.5, "length-runaway": -1.0},
    ("answer_ends", "cut"): {"length-truncation": 2.6, "eos-never": -0.5},
    ("answer_ends", "loop"): {"eos-never": 1.6, "length-runaway": 2.4, "catastrophic-update": 0.8},
    ("end_token", "yes"): {"eos-never": -2.5, "template-mismatch": -1.0},
    ("end_token", "no"): {"eos-never": 3.4, "template-mismatch": 1.0},
    ("gradients", "yes"): {"zero-gradient-despite-signal": -2.5},
    ("gradients", "no"): {"zero-gradient-despite-signal": 4.0},
    ("best_answers", "right"): {"reward-hacking": -3.0, "saturated-all-one-reward": -1.0},
    ("best_answers", "wrong"): {"reward-hacking": 3.6},
}
_STANDS_ALONE = 2.3
"""Weight from which an answer raises a finding that nothing in the log does."""
_SETTINGS = (GROUP_SIZE, LEARNING_RATE, KL_COEF, MAX_LENGTH, TEMPERATURE)
_ALSO = {"beta": KL_COEF, "lr": LEARNING_RATE, "max_length": MAX_LENGTH, "num_generations": GROUP_SIZE}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a person said: settings, words for questions of choice, and readings of signals."""

    settings: RunSettings = field(default_factory=RunSettings)
    words: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, float] = field(default_factory=dict)


def read_answers(pairs: Sequence[str]) -> Answers:
    """The answers in ``key=value`` texts: questions by their key, settings, or any signal of a log by its name.

    Raises:
        InputError: A pair is none, names nothing that could be asked, or its value is not one of the choices.
    """
    settings: dict[str, float] = {}
    words: dict[str, str] = {}
    readings: dict[str, float] = {}
    for pair in pairs:
        raw, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not raw or not value:
            raise InputError(f"--answer {pair}: give KEY=VALUE, as in --answer group_size=8")
        key = _ALSO.get(raw.lower(), raw.lower())
        question = QUESTIONS.get(key)
        if question is not None and question.choices:
            if value.lower() not in question.choices:
                raise InputError(f"--answer {pair}: give one of {', '.join(question.choices)}")
            words[key] = value.lower()
        elif key in _SETTINGS:
            settings[key] = _number(pair, value)
        elif key == "perfect_reward":
            words[key] = "nothing" if _number(pair, value) == 0 else "something"
        else:
            readings[_signal(pair, raw)] = _number(pair, value)
    return Answers(RunSettings(settings, {key: key for key in settings}), words, readings)


def _signal(pair: str, raw: str) -> str:
    if raw == "logp_difference":
        return metric.LOGP_DIFFERENCE_MEAN
    target = KeyMap("text").lookup(raw)
    if target is None or target.name in ("step", "epoch"):
        raise InputError(f"--answer {pair}: {raw} is no signal, setting or question; one of {', '.join(QUESTIONS)}")
    return target.name


def _number(pair: str, value: str) -> float:
    try:
        number = parse_number(value)
    except NotANumberError:
        number = None
    if number is None:
        raise InputError(f"--answer {pair}: {value} is no number")
    return number


def worth(answers: Answers) -> Iterator[Argument]:
    """What the answers say for and against findings."""
    table = {
        **_WORTH,
        ("perfect_reward", "nothing"): {"template-mismatch": 1.5, "no-learning-signal-all-zero-reward": 2.4},
        ("perfect_reward", "something"): {"template-mismatch": 0.5, "no-learning-signal-all-zero-reward": -0.5},
    }
    for key, word in answers.words.items():
        for code, weight in table.get((key, word), {}).items():
            yield Argument(code, weight, "answer", {"name": key, "value": word}, alone=weight >= _STANDS_ALONE)


def place_readings(history: History, readings: Mapping[str, float]) -> None:
    """Give the history the numbers that a person told, at its last step, where it has none of that signal."""
    for name, value in readings.items():
        if not len(history.series(name)) and history.rows:
            column = history.columns.setdefault(name, history.series(name))
            column.append(history.last_step, value, history.capacity)


def questions(diagnosis: Diagnosis, history: History, answered: Sequence[str]) -> list[Question]:
    """The one or two questions that would settle a diagnosis best; none where it is settled.

    Args:
        diagnosis: What has been said.
        history: The log's readings: nothing is asked that stands there.
        answered: Keys of settings and of answers that are given.
    """
    first, *others = diagnosis.findings
    close = [f for f in others if first.confidence - f.confidence < APART and f.severity != "info"]
    if first.confidence >= CERTAIN and not close:
        return []
    codes = [first.code, *(f.code for f in close[:1])]
    if first.code in VERDICTS:
        codes = [*(f.code for f in others[:1] if f.confidence > 0.3), first.code]
    keys = [key for code in codes for key in _ASKED_FOR.get(code, ())[:2]]
    open_keys = [key for key in dict.fromkeys(keys) if key not in answered and not len(history.series(key))]
    # One for each of the findings that are to be told apart.
    return [QUESTIONS[key] for key in open_keys[:_MOST]]


def line(question: Question, language: Language = "en") -> str:
    """A question in one line, with how to find out and how to answer."""
    how = f" [{said(question.command, language)}]" if question.command else ""
    answer = "|".join(question.choices) or said("NUMBER", language)
    return f"{question.text.get(language)}{how} --answer {question.key}={answer}"
