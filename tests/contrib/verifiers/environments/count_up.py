"""Several turns: the environment speaks first, asks for one number after the other, and breaks on "break"."""

from collections.abc import Iterator
from itertools import count

import verifiers.v1 as vf


class Data(vf.TaskData):
    start: int


class Count(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        said = [message.content or "" for message in trace.assistant_messages]
        return sum(str(self.data.start + i) in text for i, text in enumerate(said)) / 3


class Counting(vf.SingleAgentEnv):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as interaction:
            asked = f"Count from {task.data.start}, a number a turn."
            for _ in range(3):
                turn = await interaction.turn(asked)
                if turn.terminated:
                    break
                if "break" in turn.last_reply:
                    raise RuntimeError("the table fell over")
                asked = "Next." + " please" * (400 if "flood" in turn.last_reply else 0)


class Numbers(vf.Taskset[Count, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[Count]:
        for i in count():
            yield Count(Data(idx=i, prompt=None, start=i))


__all__ = ["Counting", "Numbers"]
