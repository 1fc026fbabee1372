"""``python -m levelhead.metrics > docs/metrics.md``: the page of all metrics."""

import sys

from levelhead.metrics.catalogue import page

sys.stdout.write(page())
