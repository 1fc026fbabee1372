"""The guard: the same eyes as the doctor's, open while the run is still going."""

from levelhead.guard.guard import LiveGuard, make_guard

__all__ = ["LiveGuard", "make_guard"]
