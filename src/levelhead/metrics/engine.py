"""Metrics of servers that sample: how many there are, and whether they hold the policy."""

from __future__ import annotations

from levelhead.metrics.base import Section

# fmt: off
SECTION = Section("Servers", ("grpo", "eval"), "With `generator: {kind: vllm}`.")
SERVERS = SECTION.metric("engine/servers", "Servers in use.", "count")
SYNCS = SECTION.metric("engine/syncs", "Weight syncs.", "count")
_SYNCED = "where weights were synced"
MISMATCH_MEAN = SECTION.metric(
    "engine/mismatch/mean",
    "Mean gap between server and trainer in the log-probabilities of the probe after a weight sync.", "nats/token",
    only=_SYNCED,
)
MISMATCH_MAX = SECTION.metric("engine/mismatch/max", "Largest such gap of a token.", "nats/token", only=_SYNCED)
REPEATED = SECTION.metric(
    "engine/repeated", "Requests that were sent again, to another server or to one that came back.", "count",
)
TIME_SYNC = SECTION.metric(
    "time/sync", "Time of weight syncs, their probes included; a part of the time of sampling.", "seconds",
)
