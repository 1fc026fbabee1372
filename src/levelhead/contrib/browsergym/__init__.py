"""BrowserGym's environments as a task, where BrowserGym is installed."""

from levelhead.contrib.browsergym.task import BrowserGymTask

__all__ = ["BrowserGymTask"]
