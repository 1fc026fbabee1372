"""OpenEnv: environments behind a web socket, as a task to train on and as a server of our own."""

from levelhead.contrib.openenv.task import OpenEnvTask

__all__ = ["OpenEnvTask"]
