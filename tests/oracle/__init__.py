"""Proofs of Levelhead's own arithmetic, sampler and bookkeeping on a small policy, and what names a disagreement.

``oracle.run.preflight`` makes them on a setup, as the users' preflight makes its checks: the textbook of the objective
(``oracle.textbook``: a second implementation in float64 numpy), sampling against its distribution, batching, weight
syncs, choice of prompts, schedules and optimizers.
"""
