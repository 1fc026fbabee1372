"""Metrics of judges: what they were asked, what that cost, and how they stand."""

from __future__ import annotations

from levelhead.metrics.base import FROM_0, Section

# fmt: off
SECTION = Section(
    "Judges",
    ("grpo",),
    "Over all judged tasks. Verdicts and failures follow from the answers; the others depend on the network, the clock "
    "and the cache, and differ between two runs of one seed.",
)
_JUDGED = "with a judged task"
VERDICTS = SECTION.metric(
    "judge/verdicts", "Right answers that a judge was asked to grade.", "count", only=_JUDGED,
)
FAILURES = SECTION.metric("judge/failures", "Verdicts that came back without a grade.", "count", only=_JUDGED)
FAILURE_RATE = SECTION.metric(
    "judge/failure_rate", "Failures divided by verdicts.", "share", only="where there was a verdict",
)
CALLS = SECTION.metric("judge/calls", "Replies of the endpoint.", "count", only=_JUDGED)
CACHED = SECTION.metric("judge/cached", "Replies from the cache, which cost nothing.", "count", only=_JUDGED)
RETRIES = SECTION.metric(
    "judge/retries", "Attempts that failed (busy, silent) and were repeated.", "count", only=_JUDGED,
)
THROTTLED = SECTION.metric(
    "judge/throttled", "Attempts that the endpoint refused as too many (429) and that were repeated.", "count",
    only=_JUDGED,
)
PROMPT_TOKENS = SECTION.metric(
    "judge/prompt_tokens", "Tokens that the judge read, over the endpoint's replies.", "tokens", only=_JUDGED,
)
COMPLETION_TOKENS = SECTION.metric(
    "judge/completion_tokens", "Tokens that the judge wrote, over the endpoint's replies.", "tokens", only=_JUDGED,
)
ESTIMATED = SECTION.metric(
    "judge/estimated",
    "Replies whose tokens the endpoint did not count, or not credibly: taken as a token for four characters.", "count",
    only=_JUDGED,
)
COST = SECTION.metric(
    "judge/cost", "Cost of the judge's tokens at the recipe's prices.", "cost",
    only="with `prompt_price` or `completion_price`",
)
LATENCY_MEDIAN = SECTION.metric(
    "judge/latency_median", "Median time from sending a call to its reply, retries and their waits included.",
    "seconds", only="where there was a call",
)
LATENCY_P95 = SECTION.metric(
    "judge/latency_p95", "95th percentile of the time from sending a call to its reply.", "seconds",
    only="where there was a call",
)
BY_TASK = SECTION.family(
    "judge/{number}/{task}", "One of these numbers, of one task.", "any", only="with several judged tasks",
    bounds=FROM_0,
)
DISAGREEMENT = SECTION.metric(
    "judge/disagreement", "Mean standard deviation of a panel's grades of one answer.", "any",
    only="with a panel of which two graded an answer", bounds=FROM_0,
)
TURNED = SECTION.metric(
    "judge/order_disagreement",
    "Share of compared pairs that a judge decided otherwise when the two answers changed places; each counts as a tie.",
    "share", only="with `pairwise`, where a pair was compared",
)
TIES = SECTION.metric(
    "judge/ties", "Share of compared pairs that are ties, those of `judge/order_disagreement` included.", "share",
    only="with `pairwise`, where a pair was compared",
)
OF = SECTION.family(
    "judges/{judge}/{number}",
    "One of these numbers, of one judge of a list, named `TASK.JUDGE`; `grade` is its mean grade on the common scale, "
    "`down` whether it is left alone, `drift` the change of its mean grade on the anchors.", "any",
    only="with `judges`",
)
