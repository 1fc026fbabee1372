"""A tool: what stands on a shelf is only known to those who look."""

import verifiers.v1 as vf

THINGS = {"top": "a lamp", "middle": "a book", "bottom": "a shoe"}


class Shelf(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "shelf"

    @vf.tool
    def look(self, board: str) -> str:
        """Look what stands on a board: top, middle or bottom."""
        return f"\x1b[1m{THINGS[board]}\x1b[0m"


class Data(vf.TaskData):
    thing: str


class Find(vf.Task[Data]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Shelf(vf.ToolsetConfig())]

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(self.data.thing in trace.last_reply)


class Boards(vf.Taskset[Find, vf.TasksetConfig]):
    def load(self) -> list[Find]:
        return [
            Find(Data(idx=i, prompt=f"What stands on the {board}?", thing=thing))
            for i, (board, thing) in enumerate(THINGS.items())
        ]


__all__ = ["Boards"]

if __name__ == "__main__":
    Shelf.run()
