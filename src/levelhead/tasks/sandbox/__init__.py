"""Programs that a model wrote run here: in a child process, within walls and limits, never in ours."""

from levelhead.tasks.sandbox.run import Bench, ProgramResult, find_wall, run_program

__all__ = ["Bench", "ProgramResult", "find_wall", "run_program"]
