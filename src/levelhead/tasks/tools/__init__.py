"""Tools that the policy may call: how calls are written, how they are executed, and the episode around them."""

from levelhead.tasks.tools.toolbox import Toolbox

__all__ = ["Toolbox"]
