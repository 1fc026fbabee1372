"""What a policy that writes workflows does: how varied it is, what it uses and chooses, and what updates do to it.

Functions over texts, numbers and plain rows, and readers for run folders and for the text logs that trainers of such
policies print.  Nothing here needs a parser.
"""

from levelhead.watch.workflows.analysis import Analysis, Table, analyse
from levelhead.watch.workflows.census import STRUCTURES, Census, Structure, census, operators, structure
from levelhead.watch.workflows.choices import Choice, Written, choices, written
from levelhead.watch.workflows.collapse import Collapse, collapse_after_update
from levelhead.watch.workflows.log import Batch, batches_of_rollouts, is_workflow_log, read_log
from levelhead.watch.workflows.runs import analyse_path, analyse_run, tasks_of

__all__ = [
    "STRUCTURES",
    "Analysis",
    "Batch",
    "Census",
    "Choice",
    "Collapse",
    "Structure",
    "Table",
    "Written",
    "analyse",
    "analyse_path",
    "analyse_run",
    "batches_of_rollouts",
    "census",
    "choices",
    "collapse_after_update",
    "is_workflow_log",
    "operators",
    "read_log",
    "structure",
    "tasks_of",
    "written",
]
