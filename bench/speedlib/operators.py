"""Where a step spends its time, operator by operator."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile, record_function


def profiled(step: Callable[[], object], rows: int) -> str:
    """Run one step under torch's profiler and return its table of operators by their own time."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=False) as profiler, record_function("step"):
        step()
    return str(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=60))
