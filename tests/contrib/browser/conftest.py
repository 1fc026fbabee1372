"""Each module of browser tests has a temporary folder of its own.

What a run leaves behind is recorded in the temporary folder of the machine, and whichever run starts next ends it.
With tests side by side in several processes, that would be a neighbour as often as the test itself.
"""

import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Lead this module, and every process it starts, to a new temporary folder; its name is short, sockets go there."""
    tmp_path_factory.getbasetemp()  # made before the change, for it outlives this module
    with pytest.MonkeyPatch.context() as patch:
        folder = tempfile.mkdtemp(prefix="lh-")
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)
