import subprocess
import sys

import pytest

from levelhead.recipe.task import TaskSection
from levelhead.recipe.tasks import Fairness
from levelhead.tasks.base import Task
from levelhead.tasks.registry import make_task


def test_a_section_becomes_its_task():
    task = make_task(Fairness(kind="fairness", items=40, name="bias"))
    assert isinstance(task, Task)
    assert task.name == "bias"


def test_a_section_without_a_task_is_named():
    with pytest.raises(ValueError, match="TaskSection names no task"):
        make_task(TaskSection())


def test_a_task_is_imported_only_when_it_is_asked_for():
    code = "import sys, levelhead.tasks.registry; print(*[name for name in sys.modules if 'fairness' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
