"""What a policy that writes workflows does: how varied it is, what it uses and chooses, and what updates do to it.

Functions over texts, numbers and plain rows, and a reader for the text logs that trainers of such policies print.
Nothing here needs a parser.
"""

from levelhead.contrib.workflow.analysis.census import STRUCTURES, Census, Structure, census, operators, structure
from levelhead.contrib.workflow.analysis.choices import Choice, Written, choices, written
from levelhead.contrib.workflow.analysis.log import Batch, batches_of_rollouts, is_workflow_log, read_log
from levelhead.contrib.workflow.analysis.tables import Analysis, Collapse, analyse, collapse_after_update

__all__ = [
    "STRUCTURES",
    "Analysis",
    "Batch",
    "Census",
    "Choice",
    "Collapse",
    "Structure",
    "Written",
    "analyse",
    "batches_of_rollouts",
    "census",
    "choices",
    "collapse_after_update",
    "is_workflow_log",
    "operators",
    "read_log",
    "structure",
    "written",
]
