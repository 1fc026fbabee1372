"""Programs that a model wrote run here: in a child process, within walls and limits, never in ours."""

from levelhead.tasks.workflow.sandbox.run import ProgramResult, run_program

__all__ = ["ProgramResult", "run_program"]
