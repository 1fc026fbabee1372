"""Every number that a run writes to ``metrics.jsonl``: its name, meaning, unit and range.

Writers and readers of records take names from here; docs/metrics.md is made from the same declarations
(``python -m levelhead.metrics``).  Names are TRL's where TRL has the metric.  ``X_BY_TASK`` and the like are families:
``KL_BY_TASK.of("fairness")`` is ``kl/fairness``.
"""

from __future__ import annotations

from levelhead.metrics import engine, judging
from levelhead.metrics.base import ANY, FROM_0, Section

# fmt: off
_groups = Section("Rewards and groups", ("grpo",))
REWARD = _groups.metric("reward", "Mean reward of the step's rollouts.", "reward")
REWARD_BY_TASK = _groups.family("reward/{task}", "Mean reward of one task's rollouts.", "reward")
REWARD_SHAPED = _groups.family(
    "reward_shaped/{task}", "Mean reward of one task after shaping.", "reward", only="where shaping changes a reward",
)
REWARD_STD = _groups.metric(
    "reward_std", "Mean over groups of the population standard deviation of a group's rewards.", "reward",
    bounds=FROM_0,
)
PART_MEAN = _groups.family(
    "rewards/{part}/mean", "Mean of one named part of the reward.", "reward", only="with one task",
)
PART_STD = _groups.family(
    "rewards/{part}/std", "Population standard deviation of that part over rollouts.", "reward", only="with one task",
    bounds=FROM_0,
)
TASK_PART_MEAN = _groups.family(
    "rewards/{task}/{part}/mean", "Mean of one named part of a task's reward.", "reward", only="with several tasks",
)
TASK_PART_STD = _groups.family(
    "rewards/{task}/{part}/std", "Population standard deviation of that part over rollouts.", "reward",
    only="with several tasks", bounds=FROM_0,
)
TURN_REWARD = _groups.family(
    "turn_reward/{task}/{turn}", "Mean of what one turn earned, over the rollouts that have it.", "reward",
    only="where the environment pays turns; the first 16",
)
LIVE_GROUPS = _groups.metric("live_groups", "Share of groups in which the estimator sees something to learn.", "share")
ZERO_STD = _groups.metric(
    "frac_reward_zero_std",
    "Share of groups whose rewards, once shaped, are all equal: they add nothing to the policy gradient.", "share",
)
ALL_FAILED = _groups.metric(
    "dead_groups/all_failed", "Share of groups without contrast in which every rollout failed: too hard.", "share",
)
ALL_SOLVED = _groups.metric(
    "dead_groups/all_solved", "Share of groups without contrast in which every rollout succeeded: too easy.", "share",
)
AGREEMENT = _groups.metric(
    "advantages/agreement", "Cosine of advantages and of rewards above their group's mean.", "cosine",
    only="unless all are 0",
)
VALIDITY = _groups.metric("validity", "Share of completions that the task could read.", "share")
VALIDITY_BY_TASK = _groups.family("validity/{task}", "Share of one task's completions that it could read.", "share")
NUM_ROLLOUTS = _groups.metric(
    "num_rollouts", "Rollouts that were sampled and scored, those of replaced groups included.", "count",
)
DROPPED_ROLLOUTS = _groups.metric("dropped_rollouts", "Rollouts that could not be scored and were left out.", "count")
REWARD_ERRORS = _groups.metric(
    "frac_reward_errors",
    "Share of answers that reward functions failed on and that were left out, those of replaced groups included.",
    "share", only="with `on_reward_error: drop`, over the tasks that have it",
)
REWARD_ERRORS_BY_TASK = _groups.family(
    "frac_reward_errors/{task}", "Share of one task's answers that its reward functions failed on.", "share",
    only="where several tasks have that setting",
)
BALANCE = _groups.family(
    "balance/{task}/{stratum}", "Weight of a group of that stratum in the policy gradient.", "coefficient",
    only="with `tasks[].balance`", bounds=FROM_0,
)
LOGGED = _groups.family(
    "logged/{name}", "Mean of what reward functions log under a name that is one of this page's.", "any",
    only="after `log_metric`; other names stand as they are",
)

_answers = Section(
    "Answers",
    ("grpo",),
    "Whether answers depend on prompts, over all rollouts that were sampled for the step "
    "([how answers are compared](run-folder.md#answers-grpo)).",
)
_TWO = "where the step has two prompts of the task"
TOP_SHARE = _answers.family(
    "answers/top_share/{task}",
    "Share of prompts whose most common answer is the most common one of the batch: 1 if all get the same.", "share",
    only=_TWO,
)
DISTINCT = _answers.family(
    "answers/distinct/{task}", "Different answers, divided by prompts: below 1 where prompts share answers.", "ratio",
    only=_TWO,
)
ANSWER_ENTROPY = _answers.family(
    "answers/entropy/{task}", "Entropy of the answers over the batch: 0 if all rollouts give the same.", "nats",
    only=_TWO,
)
INFORMATION = _answers.family(
    "answers/information/{task}",
    "What answers tell of their prompts: the entropy of the answers less its mean within groups, corrected for chance.",
    "nats", only=f"{_TWO}, and two of its answers are the same", bounds=ANY,
)
PERFECT_SHARE = _answers.family(
    "answers/perfect_share/{task}", "Top share that perfect answers to these prompts would have.", "share",
    only=f"{_TWO}, and the task knows perfect answers",
)

_STRATA = "where a step has two strata of the task, with two prompts each on average"
STRATUM_REWARD = _answers.family(
    "strata/reward/{task}/{stratum}", "Mean reward of the rollouts of one stratum (of the task's first key).", "reward",
    only=_STRATA,
)
STRATUM_SUCCESS = _answers.family(
    "strata/success/{task}/{stratum}", "Share of its rollouts that succeed: `success`, or a reward of at least 0.5.",
    "share", only=_STRATA,
)
STRATUM_COMMON = _answers.family(
    "strata/common/{task}/{stratum}",
    "Share of its rollouts that give the most common answer of the task's batch where it is wrong.", "share",
    only=_STRATA,
)

_completions = Section("Completions", ("grpo",), "Tokens of a rollout count all its turns, the stop token included.")
MEAN_LENGTH = _completions.metric(
    "completions/mean_length", "Mean length of a rollout; in SFT of a demonstration.", "tokens", stages=("sft", "grpo"),
)
MIN_LENGTH = _completions.metric("completions/min_length", "Shortest rollout.", "tokens")
MAX_LENGTH = _completions.metric("completions/max_length", "Longest rollout.", "tokens")
MEAN_TERMINATED_LENGTH = _completions.metric(
    "completions/mean_terminated_length", "Mean length of the rollouts that ended by themselves.", "tokens",
    only="where one did",
)
CLIPPED_RATIO = _completions.metric(
    "completions/clipped_ratio", "Share of rollouts that ran out of the token budget.", "share",
)
NUM_TURNS = _completions.metric("num_turns", "Mean turns of a rollout.", "count")
NUM_TOKENS = _completions.metric("num_tokens", "Completion tokens that the step trained on.", "tokens", stages=("sft",))

_sampling = Section("Sampling", ("grpo",))
TEMPERATURE = _sampling.metric(
    "sampling/temperature",
    "Temperature at which the rollouts were sampled: the recipe's for this step times the guard's factor.",
    "coefficient", bounds=FROM_0,
)
SAMPLED_ENTROPY = _sampling.metric(
    "sampling/entropy", "Mean -log p of the sampled tokens: an entropy that needs no forward pass.", "nats/token",
)
_PAIRS = "where a rollout has another one to repeat"
REPEATS = _sampling.metric(
    "sampling/repeats", "Share of rollouts that equal an earlier one of their group.", "share", only=_PAIRS,
)
REPEATS_EXPECTED = _sampling.metric(
    "sampling/repeats_expected", "Share of repeats that chance makes, by the probabilities of the samples.", "share",
    only=_PAIRS,
)
REPEATS_EVIDENCE = _sampling.metric(
    "sampling/repeats_evidence",
    "Evidence that a step's repeats are no chance: x or more has a probability of exp(-x) at most.", "nats",
    only=_PAIRS, bounds=ANY,
)
_COMPUTED = "where an update computes something"
LOGP_DIFFERENCE_MEAN = _sampling.metric(
    "sampling/sampling_logp_difference/mean",
    "Mean absolute gap between the trainer's and the sampler's log-probability of a token.", "nats/token",
    only=_COMPUTED,
)
LOGP_DIFFERENCE_MAX = _sampling.metric(
    "sampling/sampling_logp_difference/max",
    "Largest gap between the trainer's and the sampler's log-probability of a token.", "nats/token", only=_COMPUTED,
)
BEYOND_ROUNDING = _sampling.metric(
    "sampling/logp_difference_beyond_rounding",
    "Part of the mean gap between trainer and sampler that rounding does not explain: above 0 it is a bug.",
    "nats/token", only="of updates whose batch these weights sampled",
)
_CORRECTED = "with `loss.importance`"
IMPORTANCE_MEAN = _sampling.metric(
    "sampling/importance_sampling_ratio/mean",
    "Mean weight that corrects a token for the gap between trainer and sampler.", "ratio", only=_CORRECTED,
)
IMPORTANCE_MIN = _sampling.metric(
    "sampling/importance_sampling_ratio/min", "Smallest such weight.", "ratio", only=_CORRECTED,
)
IMPORTANCE_MAX = _sampling.metric(
    "sampling/importance_sampling_ratio/max", "Largest such weight.", "ratio", only=_CORRECTED,
)
IMPORTANCE_CUT = _sampling.metric(
    "sampling/importance_sampling_ratio/cut_mean", "Share of tokens whose weight was truncated or masked.", "share",
    only=_CORRECTED,
)
_REDRAWN = "with `dynamic_sampling`"
REDRAW_ROUNDS = _sampling.metric(
    "dynamic_sampling/rounds", "Times that groups without contrast were replaced.", "count", only=_REDRAWN,
)
REDRAWN_GROUPS = _sampling.metric(
    "dynamic_sampling/redrawn", "Groups that were sampled in their place.", "count", only=_REDRAWN,
)
REDRAW_CONTRAST = _sampling.metric(
    "dynamic_sampling/contrast", "Share of all groups sampled that had contrast.", "share", only=_REDRAWN,
)
REDRAW_REWARD = _sampling.metric(
    "dynamic_sampling/reward", "Mean reward of all groups sampled; `reward` is that of the batch.", "reward",
    only=_REDRAWN,
)
_LEARNABLE = "with `curriculum: {kind: learnability}`"
CURRICULUM_SUCCESS = _sampling.family(
    "curriculum/success/{arm}",
    "Recent success of a task, or of one of its kinds (`<task>/<kind>`), as known before the step.", "share",
    only=_LEARNABLE,
)
CURRICULUM_SHARE = _sampling.family(
    "curriculum/share/{arm}", "Share of the step's prompts that the task or kind is to get.", "share", only=_LEARNABLE,
)
OFF_POLICY = _sampling.metric(
    "off_policy/mean", "Updates between the weights that sampled the batch and those that the step starts from.",
    "updates", only="with `grpo.async`",
)
_AHEAD = "with `grpo.async` above 1, or with several processes"
STALENESS_MEAN = _sampling.metric(
    "staleness/mean", "Steps that the weights of the step are ahead of those that wrote a group, mean over groups.",
    "steps", only=_AHEAD, bounds=FROM_0,
)
STALENESS_MAX = _sampling.metric(
    "staleness/max", "The same of the oldest group; at most `grpo.async`.", "steps", only=_AHEAD, bounds=FROM_0,
)
STALENESS_DROPPED = _sampling.metric(
    "staleness/dropped", "Groups that came too late for `grpo.async`, dropped and drawn again from their prompts.",
    "count", only=_AHEAD, bounds=FROM_0,
)

_policy = Section("Policy and loss", ("grpo",))
LOSS = _policy.metric(
    "loss", "The scalar whose gradient is taken; in GRPO it is near 0 by construction and says little.", "any",
    stages=("sft", "grpo"),
)
ENTROPY = _policy.metric(
    "entropy", "Mean entropy of the next-token distribution over completion tokens.", "nats/token", only=_COMPUTED,
    stages=("sft", "grpo"),
)
ENTROPY_BY_TASK = _policy.family(
    "entropy/{task}", "Mean entropy over one task's completion tokens.", "nats/token", only=_COMPUTED,
)
_REFERRED = "where a reference is kept"
KL = _policy.metric("kl", "Estimated divergence from the reference policy.", "nats/token", only=_REFERRED, bounds=ANY)
KL_BY_TASK = _policy.family(
    "kl/{task}", "Estimated divergence from the reference policy on one task.", "nats/token", only=_REFERRED,
    bounds=ANY,
)
KL_COEF = _policy.family(
    "kl_coef/{task}", "KL coefficient of one task in force.", "coefficient", only=_REFERRED, bounds=FROM_0,
)
TASK_WEIGHT = _policy.family(
    "task_weight/{task}", "Weight of one task's objective in force; those of all tasks add up to 1.", "coefficient",
    only="with `grpo.task_weights` that move", bounds=FROM_0,
)
MULTIPLIER = _policy.family(
    "multiplier/{task}", "Lagrange multiplier of one task's constraint in force.", "coefficient",
    only="with `grpo.task_weights: {kind: constraint}`", bounds=FROM_0,
)
ENTROPY_COEF = _policy.metric("entropy_coef", "Entropy coefficient in force.", "coefficient")
_RATIOS = "with a loss of probability ratios"
_CLIPPING = "with a loss that clips them"
CLIP_LOW = _policy.metric(
    "clip_ratio/low_mean", "Share of tokens whose probability ratio fell below the clip range where that matters.",
    "share", only=_CLIPPING,
)
CLIP_HIGH = _policy.metric(
    "clip_ratio/high_mean", "Share of tokens whose probability ratio rose above the clip range where that matters.",
    "share", only=_CLIPPING,
)
CLIP_REGION = _policy.metric(
    "clip_ratio/region_mean", "Share of tokens whose probability ratio is clipped on either side.", "share",
    only=_CLIPPING,
)
CLIP_DUAL = _policy.metric(
    "clip_ratio/dual_mean", "Share of tokens that the dual clip's bound holds.", "share", only="with `loss.dual_clip`",
)
CLIP_COVARIANCE = _policy.metric(
    "clip_ratio/covariance_mean", "Share of tokens that `clip_cov` detaches.", "share",
    only="with `loss.kind: clip_cov`",
)
RATIO_COVARIANCE = _policy.metric(
    "ratio/covariance_mean", "Share of tokens that `kl_cov` penalises.", "share", only="with `loss.kind: kl_cov`",
)
CISPO_CLIP_RATIO = _policy.metric(
    "cispo_clip_ratio", "Share of tokens whose weight is bounded while their advantage is positive.", "share",
    only="with `loss.kind: cispo`",
)
RATIO_MEAN = _policy.metric(
    "ratio/mean", "Mean probability ratio of the policy to the one that sampled the tokens, over those that teach.",
    "ratio", only=_RATIOS,
)
RATIO_MAX = _policy.metric("ratio/max", "Largest such ratio.", "ratio", only=_RATIOS)
RATIO_BOUNDED = _policy.metric(
    "ratio/bounded_mean",
    "Share of tokens whose ratio is too large to be taken as it is, and is continued by its tangent.", "share",
    only=_RATIOS,
)

_updates = Section("Gradient and update", ("grpo",))
GRAD_NORM = _updates.metric(
    "grad_norm", "Norm of the gradient before it is scaled down to `max_grad_norm`.", "norm", stages=("sft", "grpo"),
)
LEARNING_RATE = _updates.metric(
    "learning_rate", "Learning rate of the step.", "coefficient", bounds=FROM_0, stages=("sft", "grpo"),
)
_ROUNDED = "where products are made in a coarser type than float32"
VISIBLE = _updates.metric(
    "update/visible",
    "Norm of what the computing type shows of the stage's updates so far, as a share of theirs "
    "([precision](precision.md)).",
    "share", only=_ROUNDED, bounds=FROM_0, stages=("sft", "grpo"),
)
VISIBLE_COSINE = _updates.metric(
    "update/visible_cosine", "Cosine of what the computing type shows of these updates with them.", "coefficient",
    only=_ROUNDED, bounds=ANY, stages=("sft", "grpo"),
)
_GUARDED = "with the guard"
GUARD_KL = _updates.metric(
    "guard/kl", "How far the update moved the policy ([the guard](guard.md)).", "nats/token", only=_GUARDED,
)
GUARD_SCALE = _updates.metric("guard/scale", "Share of the update that stands.", "share", only=_GUARDED)
GUARD_DRIFT = _updates.metric(
    "guard/drift", "How far the policy was after the update from the one that the batch's updates began with.",
    "nats/token", only=_GUARDED,
)
GUARD_ALIGNMENT = _updates.metric(
    "guard/alignment",
    "Cosine, over a few sequences, of rewards above their group's mean and change of log-probability: whether "
    "updates follow the rewards.", "cosine", only=_GUARDED,
)
_SEVERAL = "where gradients are kept apart by task (`merge.kind`, or a look of the monitor)"
MERGE_COSINE = _updates.family(
    "merge/cosine/{task}/{other}", "Cosine of the gradients of two tasks: 1 agree, -1 fight.", "cosine", only=_SEVERAL,
)
MERGE_WEIGHT = _updates.family(
    "merge/weight/{task}", "Weight of a task's gradient in the merged one.", "coefficient", only=_SEVERAL,
)
MERGE_NORM = _updates.family("merge/norm/{task}", "Norm of a task's gradient.", "norm", only=_SEVERAL)
_MONITORED = "at looks of the conflict monitor (`merge.monitor_every`)"
MERGE_CONFLICT = _updates.metric(
    "merge/conflict", "Whether some pair of tasks pulls apart: 1 or 0.", "share", only=_MONITORED,
)
MERGE_CONFLICT_STREAK = _updates.metric(
    "merge/conflict_streak", "For how many looks in a row some pair of tasks has pulled apart.", "count",
    only=_MONITORED,
)
_AUDITED = "at audits (`grpo.audit`)"
AUDIT_SLOPE = _updates.family(
    "audit/{term}/slope", "Change of a term's value that the update brings about, to first order.", "slope",
    only=_AUDITED,
)
AUDIT_FROM = _updates.family(
    "audit/{term}/from_{source}",
    "Part of a term's slope that another term, momentum or weight decay is responsible for.", "slope", only=_AUDITED,
)
AUDIT_COEF = _updates.family(
    "audit/{term}/coef", "Coefficient with which the term really entered the gradient.", "coefficient", only=_AUDITED,
)
AUDIT_COEF_ERROR = _updates.family(
    "audit/{term}/coef_error", "Standard error of that coefficient.", "coefficient", only=_AUDITED, bounds=FROM_0,
)
AUDIT_UNEXPLAINED = _updates.metric(
    "audit/unexplained", "Norm of what no term explains, as a share of the gradient's norm.", "share", only=_AUDITED,
)
AUDIT_UNJUDGED = _updates.metric(
    "audit/unjudged",
    "Terms whose coefficient could be of either sign: [rounding](objective.md#in-half-precision) hides it, or a term "
    "of the same gradient.", "count", only=_AUDITED,
)

_times = Section("Time", ("grpo",), "Seconds differ between two runs of one seed.")
STEP_TIME = _times.metric("step_time", "Time of the whole step.", "seconds", stages=("sft", "grpo"))
TIME_SAMPLE = _times.metric("time/sample", "Time of sampling tokens.", "seconds", only="if any")
TIME_SCORE = _times.metric("time/score", "Time of scoring answers: rewards, judges.", "seconds", only="if any")
TIME_ENV = _times.metric("time/env", "Time in environments: a browser, a server.", "seconds", only="if any")
TIME_TRAIN = _times.metric("time/train", "Time of the updates.", "seconds")
TIME_WAIT = _times.metric(
    "time/wait",
    "Time that the step stood still for its batch; sampling and scoring it went on beside the step before.", "seconds",
    only="with `grpo.async: 1`",
)
TIME_EVAL = _times.metric("time/eval", "Time of the whole evaluation.", "seconds", stages=("eval",))
TIME_CONSTANT = _times.metric(
    "time/constant", "Time of finding the best constant answer.", "seconds", stages=("eval",),
    only="unless `eval.constant: false`",
)
TIME = "time/"
"""What the names of all parts of a step's time begin with."""

SECTIONS = (_groups, _answers, judging.SECTION, _completions, _sampling, engine.SECTION, _policy, _updates, _times)
"""What has been declared here, in the order of the documentation."""
