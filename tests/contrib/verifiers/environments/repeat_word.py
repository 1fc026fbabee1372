"""One turn: say the word."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    word: str


class Repeat(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def said(self, trace: vf.Trace) -> float:
        return float(self.data.word in trace.last_reply)

    @vf.reward(weight=-0.1)
    async def long(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) > 20)

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    words: int = 8


class Words(vf.Taskset[Repeat, Config]):
    def load(self) -> list[Repeat]:
        words = [f"w{i}" for i in range(self.config.words)]
        return [
            Repeat(Data(idx=i, prompt=f"Say {word}.", system_prompt="Be brief.", word=word), self.config.task)
            for i, word in enumerate(words)
        ]


__all__ = ["Words"]
