"""Findings about runs that ended before their end."""

# Chinese punctuation is meant.
# ruff: noqa: RUF001
from __future__ import annotations

from levelhead.diagnosis.entry import Entry, Remedy, Text

_RESUME = Remedy(
    why=Text(
        "With a checkpoint every few steps, `levelhead train --resume` loses little of a run that an error ends.",
        "每隔几步存一次检查点，出错后用 `levelhead train --resume` 继续，损失很小。",
    ),
    source="docs/train, checkpoints and resuming",
    recipe={"checkpoint.every": 10},
    trl={"save_steps": 10},
    verl={"trainer.save_freq": 10},
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="rewards-stopped",
        severity="critical",
        title=Text("Rewards ended the run", "奖励中断了训练"),
        meaning=Text(
            "A reward could not be computed any more, and the run ended there: what its rows say of learning is the "
            "story of a part of a run.",
            "奖励无法继续计算，训练在此中断：各行所示只是训练的一部分。",
        ),
        mechanism=Text(
            "A judge's or executor's endpoint refused (401, 403, 404), stayed silent for longer than its patience, or "
            "its budget in calls or tokens was used up; or a reward function raised an error.",
            "评判或执行器的接口拒绝（401、403、404），无应答超过容忍时间，调用或词元预算用尽；或奖励函数抛出错误。",
        ),
        differs=Text(
            "A judge that answers without grades, or is scored as wrong while it is down, leaves a run that goes on: "
            "judge-failure.",
            "评判有应答却没有分数，或宕机时被当作答错，训练仍会继续：那是 judge-failure。",
        ),
        confirm=Text(
            "Read the last line of events.jsonl. Send the endpoint one call by hand, with the same key.",
            "读 events.jsonl 的最后一行；用同一密钥手动调用一次接口。",
        ),
        remedies=(
            Remedy(
                why=Text(
                    "A refusal (401, 403) is the key: name the environment variable that holds it, and set it where "
                    "training runs. A 404 is the address or the model's name.",
                    "拒绝（401、403）是密钥问题：写明存放密钥的环境变量，并在训练处设置它。404 是地址或模型名的问题。",
                ),
                source="docs/judges",
                recipe={"tasks[].judge.api_key_env": "NAME_OF_THE_VARIABLE"},
                trl={"reward_funcs": "a key that the endpoint accepts"},
                verl={"custom_reward_function.path": "a key that the endpoint accepts"},
                causes=("authentication", "refusal"),
            ),
            Remedy(
                why=Text(
                    "A budget that covers the whole run, a cache that answers again for nothing, and patience for an "
                    "endpoint that restarts; then go on with --resume.",
                    "预算覆盖整个训练，缓存使重复调用免费，对重启的接口多些耐心；然后用 --resume 继续。",
                ),
                source="docs/judges",
                recipe={
                    "tasks[].judge.max_calls": "steps x batch_size",
                    "tasks[].judge.cache": "judge.sqlite",
                    "tasks[].judge.patience_s": 3600,
                },
                trl={"reward_funcs": "retry while the endpoint is down"},
                verl={"custom_reward_function.path": "retry while the endpoint is down"},
                causes=("outage", "budget"),
            ),
            _RESUME,
        ),
    ),
    Entry(
        code="run-stopped",
        severity="critical",
        title=Text("An error ended the run", "错误中断了训练"),
        meaning=Text(
            "The run did not come to its end: an error, or an observer, stopped it. What its rows say of learning is "
            "the story of a part of a run.",
            "训练没有走完：某个错误或观察者将其停止。各行所示只是训练的一部分。",
        ),
        mechanism=Text(
            "Memory ran out, a disk filled up, weights were lost, an environment broke, or a function of the user's "
            "raised an error. The last event names it.",
            "内存不足、磁盘写满、权重损坏、环境出错，或用户函数抛出错误。最后一个事件写明了原因。",
        ),
        differs=Text(
            "A run that was interrupted by hand and saved is not at fault; one that its rewards ended is "
            "rewards-stopped.",
            "手动中断并已保存的训练没有问题；因奖励而中断的是 rewards-stopped。",
        ),
        confirm=Text(
            "Read the last line of events.jsonl; run again with --debug for the place in the code.",
            "读 events.jsonl 的最后一行；加 --debug 重跑可见代码位置。",
        ),
        remedies=(_RESUME,),
    ),
)
