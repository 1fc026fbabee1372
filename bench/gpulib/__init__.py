"""Parts of ``bench/gpu.py``: the shapes, what GPUs can do at most, agreement of backends, and the timed steps."""
