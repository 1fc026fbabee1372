"""Names of what an evaluation measures, as they stand in ``summary.json`` and behind ``eval/<task>/`` in its line.

Tasks and their readers take the short names from here (``ACCURACY`` is ``accuracy``); ``NUMBER.of(task, name)`` makes
the key of a line of ``metrics.jsonl``.
"""

from __future__ import annotations

from levelhead.metrics.base import FROM_0, Section

# fmt: off
_lines = Section("Evaluations", ("eval",))
EVAL_STAGE = _lines.metric(
    "eval_stage", "The stage that the evaluation ends: `start`, `sft` or `grpo`.", "text", only="not within a stage",
)
_UNDER = "eval/{task}/"

_results = Section("Held-out results", ("eval",), "Of every task, whatever its kind.", _UNDER)
SCORE = _results.metric("score", "Mean held-out reward.", "reward")
SE = _results.metric("se", "Standard error of the score.", "reward", bounds=FROM_0)
VALIDITY = _results.metric("validity", "Share of answers that the task could read.", "share")
LENGTH = _results.metric("length", "Mean tokens of a rollout.", "tokens")
BALANCED = _results.metric(
    "balanced", "Mean over the strata of the task's first key of their mean rewards; the score where there are none.",
    "reward",
)
OVER_CONSTANT = _results.metric(
    "over_constant", "Score above the best constant answer's, on the same items.", "reward",
    only="where one was looked for",
)
STRATUM_SCORE = _results.family(
    "{key}={value}/score", "Mean reward of one stratum, as `condition=ambig`.", "reward", only="where there are strata",
)
JUDGE = _results.family(
    "judge/{number}", "What the task's judge did and cost in this evaluation, as in [GRPO steps](#judges).",
    "any", only="with a judged task", bounds=FROM_0,
)

_tasks = Section(
    "Held-out results of the embedded tasks",
    ("eval",),
    "Each task has its own; what it has nothing to be taken over is absent.",
    _UNDER,
)
_RIGHT = "fairness, math, workflow"
ACCURACY = _tasks.metric("accuracy", "Share of right answers.", "share", only=_RIGHT)
ACCURACY_OF = _tasks.family(
    "accuracy/{group}",
    "Share of right answers in one condition, category or both, to one kind of question, or in one domain.", "share",
    only="fairness, workflow",
)
S_DIS = _tasks.metric(
    "s_dis", "BBQ's bias score of disambiguated contexts: 1 always the stereotype, -1 never.", "coefficient",
    only="fairness, BBQ's rows", bounds=(-1.0, 1.0),
)
S_AMB = _tasks.metric(
    "s_amb", "BBQ's bias score of ambiguous contexts, scaled by the share of wrong answers.", "coefficient",
    only="fairness, BBQ's rows", bounds=(-1.0, 1.0),
)
S_DIS_OF = _tasks.family(
    "s_dis/{category}", "s_dis of one category.", "coefficient", only="fairness, BBQ's rows", bounds=(-1.0, 1.0),
)
S_AMB_OF = _tasks.family(
    "s_amb/{category}", "s_amb of one category.", "coefficient", only="fairness, BBQ's rows", bounds=(-1.0, 1.0),
)
EXACT_MATCH = _tasks.metric(
    "exact_match", "Share of answers that are exactly the reference's.", "share", only="faithfulness",
)
F1 = _tasks.metric("f1", "Mean F1 of the words of answer and reference.", "share", only="faithfulness")
QUOTED = _tasks.metric(
    "quoted", "Share of answers with a real quote, of the items that have something to quote.", "share",
    only="faithfulness",
)
HALLUCINATED = _tasks.metric(
    "hallucinated", "Share of answers nearer to the hallucinated one, or given where there is none.", "share",
    only="faithfulness",
)
EXACT_MATCH_OF = _tasks.family(
    "exact_match/{kind}", "Share of exact answers to one kind of item.", "share", only="faithfulness",
)
F1_OF = _tasks.family("f1/{kind}", "Mean F1 on one kind of item.", "share", only="faithfulness")
QUOTED_OF = _tasks.family("quoted/{kind}", "Share of real quotes on one kind of item.", "share", only="faithfulness")
HALLUCINATED_OF = _tasks.family(
    "hallucinated/{kind}", "Share of hallucinated answers to one kind of item.", "share", only="faithfulness",
)
ABSTAINED_ANSWERABLE = _tasks.metric(
    "abstained/answerable", "Share of the questions with an answer that were given none.", "share", only="faithfulness",
)
ABSTAINED_UNANSWERABLE = _tasks.metric(
    "abstained/unanswerable", "Share of the questions without an answer that were given none.", "share",
    only="faithfulness",
)
ABSTAINED = "abstained"
"""What the two are called in a stratum of ``summary.json``, which holds only one of them."""
RECALL_YES = _tasks.metric(
    "recall/yes", "Share of right verdicts on responses with a hallucination.", "share", only="faithfulness",
)
RECALL_NO = _tasks.metric(
    "recall/no", "Share of right verdicts on responses without a hallucination.", "share", only="faithfulness",
)
BALANCED_ACCURACY = _tasks.metric("balanced_accuracy", "Mean of the two recalls.", "share", only="faithfulness")
FORMAT = _tasks.metric("format", "Share of answers given in the form that was asked for.", "share", only="math")
SUCCESS = _tasks.metric("success", "Share of episodes that succeeded.", "share", only="environments")
VALID = _tasks.metric(
    "valid", "Share of episodes without an action that could not be read.", "share", only="environments",
)
STEPS = _tasks.metric("steps", "Mean turns of an episode.", "count", only="environments of one page")
PAGE_SUCCESS = _tasks.family(
    "{page}/success", "Share of successes on one page or environment.", "share", only="environments",
)
PAGE_STEPS = _tasks.family("{page}/steps", "Mean turns on one page or environment.", "count", only="environments")
PAGE_PART = _tasks.family(
    "{page}/{part}", "Mean of another named reward on one page (`partial`, `return`).", "any", only="environments",
)
FALLBACK = _tasks.metric("fallback", "Share of answers that hold no workflow.", "share", only="workflow")
NORMALISED = _tasks.metric(
    "normalised", "Share of answers whose workflow had to be repaired.", "share", only="workflow",
)
TOKENS = _tasks.metric("tokens", "Mean tokens that a valid workflow used.", "tokens", only="workflow")
CALLS = _tasks.metric("calls", "Mean calls that a valid workflow made.", "count", only="workflow")
UNIQUE = _tasks.metric("unique", "Different workflows, divided by valid ones.", "share", only="workflow")
WORKFLOW_ENTROPY = _tasks.metric("workflow_entropy", "Entropy over different workflows.", "nats", only="workflow")
STRUCTURE = _tasks.family("structure/{class}", "Share of valid workflows of one structure.", "share", only="workflow")
_SIMULATED = "workflow, in the simulator"
EXPECTED_REWARD = _tasks.metric(
    "expected_reward", "Mean of the exact expectations of the answers' rewards.", "reward", only=_SIMULATED,
)
EXPECTED_BEST_FIXED = _tasks.metric(
    "expected_reward/best_fixed", "Expected reward of the single best workflow on the same problems.", "reward",
    only=_SIMULATED,
)
EXPECTED_BEST_BY_CLASS = _tasks.metric(
    "expected_reward/best_by_class", "Expected reward of the best workflow for each class of problem.", "reward",
    only=_SIMULATED,
)
ENDPOINT = _tasks.family(
    "endpoint/{number}",
    "What the workflows' calls have come to in the run so far: `calls`, `cached`, `retries`, `prompt_tokens`, "
    "`completion_tokens`, `estimated`, `cost`.", "any", only="workflow, at an endpoint", bounds=FROM_0,
)
MEAN_PART = _tasks.family("rewards/{part}", "Mean of one reward function.", "reward", only="function, verifiers")
GRADE = _tasks.metric("judge", "Mean grade of the judge.", "any", only="judged tasks")
JUDGE_ERROR_RATE = _tasks.metric("judge_error_rate", "Share of verdicts without a grade.", "share", only="judged tasks")

_own = Section("Held-out results of your own tasks", ("eval",))
NUMBER = _own.family(
    "eval/{task}/{name}", "A number that a task's `summarize` returns, or that its rewards log.", "any", only="if any",
)

SECTIONS = (_lines, _results, _tasks, _own)
"""What has been declared here, in the order of the documentation."""
