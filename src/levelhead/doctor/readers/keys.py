"""What each source calls a signal: raw metric keys to canonical names.

The table was collected from the trainers' own logging code.  Where two sources use one word for two things, the
word stands in the table of the source (``_BY_FORMAT``) and not in the common one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from levelhead.doctor.readers.chinese import in_english, is_chinese
from levelhead.doctor.readers.meaning import by_meaning, with_contrast
from levelhead.doctor.readers.words import by_words

_ONE_MINUS = "1-"
_INVERSE = "1/"

# canonical name: raw keys, the most trusted first; "1-key" is one minus the key, "1/key" its inverse.
_COMMON: dict[str, str] = {
    "step": "train/global_step, training/global_step, trainer/global_step, global_step, global step, train/step, "
    "rollout/step, step, steps, current_steps, current_step, iteration, iter, it, train_step, training_step, "
    "optimizer_step, update_step, grpo_step, rl_step, policy_step, 步骤, "
    "步, "
    "episode, rollout_id, update, _step",
    "epoch": "epoch, training/epoch, train/epoch, ep",
    "loss": "loss, grpo_loss/total_loss, "
    "actor/loss, training loss, training_loss, total_loss, loss/mean, loss/total_avg, train_loss, "
    "mean_loss, avg_loss, loss_mean, 损失",
    "policy_loss": "policy_loss, grpo_loss/policy_gradient_loss, "
    "actor/pg_loss, pg_loss, train/pg_loss, loss/policy_avg, policy loss, loss/policy, "
    "actor_loss, act_loss, surrogate_loss, pg, loss_policy, actor/policy_loss",
    "reward": "reward, critic/score/mean, critic/rewards/mean, train/agg/all/reward/mean, reward/mean, rewards/mean, "
    "rollout/reward_mean, rollout/raw_reward, rollout/rewards, rollout/reward, mean_reward, reward_mean, avg_reward, "
    "average_reward, rewards_mean, avg reward, avg total reward, avg filtered reward, total_reward, reward_total, "
    "train_reward, env/reward, env/all/reward/total, rewards, rew, rm, objective/scores, objective/rlhf_reward, "
    "episode_reward, score, mean_score, score_mean, avg_score, scores, mean reward, average reward, batch_reward, "
    "reward_avg, r_mean, 奖励, 平均奖励, total reward, ep_reward, return_mean, mean_return, "
    "reward/avg_total_reward, avg_total_reward, total rewards mean, total_rewards_mean, total_r_mean, "
    "raw_reward, proxy rm, proxy reward, rm score, rm_score, reward model, rm reward",
    "reward_std": "reward_std, group_reward_std, reward/std, rewards/std, std_reward, rewards_std, rstd, "
    "critic/score/std, critic/rewards/std, within_group_std, group_std, reward_group_std, std(reward), reward std, "
    "rew_std, r_std, mean_group_std, 奖励标准差, grouped rewards std, grouped_rewards_std, group_r_std",
    "reward/max": "critic/score/max, reward/max, rewards/max, reward_max, max_reward, rew_max, best_reward, "
    "rollout/reward_max",
    "reward/min": "critic/score/min, reward/min, rewards/min, reward_min, min_reward, rew_min, rollout/reward_min",
    "frac_reward_zero_std": "frac_reward_zero_std, frac_zero_std, zero%, zero_std, zero_std_frac, zero_std_ratio, "
    "frac_zero_variance, zero_variance_frac, zero_var_frac, dead_groups, dead_group_frac, frac_dead_groups, "
    "dead_groups_frac, dead_frac, degenerate_frac, zero_adv_frac, frac_zero_adv, dead%, dead, dead groups, "
    "zero std, zero-std, zero_std_groups, frac_zero_advantage, zero_advantage_frac, uniform_groups, "
    "1-dynamic_filtering_pass_rate, 1-baseline_reward/pct_mixed, 1-train/agg/all/solved_some, 1-solved_some, "
    "1-effective_group_ratio, 1-frac_mixed, 1-frac_informative, frac_groups_skipped, skipped_frac, degenerate_rate, "
    "degenerate_ratio, flat_reward_group_ratio, flat_group_ratio, flat_groups, uniform_group_ratio, "
    "collapsed_group_ratio, zero_advantage_ratio, identical_reward_ratio",
    "dead_groups/count": "groups_skipped, n_dead_groups, num_dead_groups, dead_group_count, skipped_groups, "
    "n_groups_skipped, degenerate_groups, num_degenerate_groups",
    "groups/count": "groups_total, n_groups, num_groups, total_groups",
    "groups/mixed": "batch/solve_partial, solve_partial, solved_partial",
    "dead_groups/all_failed": "dead_groups/all_failed, baseline_reward/pct_0, train/agg/all/solved_none, solved_none, "
    "all_failed, frac_all_failed, batch/solve_none, all_fail_frac, frac_all_zero, all_wrong, frac_all_wrong",
    "dead_groups/all_solved": "dead_groups/all_solved, baseline_reward/pct_1, train/agg/all/solved_all, solved_all, "
    "all_solved, frac_all_solved, batch/solve_all, all_pass_frac, frac_all_one, all_correct, frac_all_correct",
    "advantages/mean": "advantages/mean, critic/advantages/mean, advantage_mean, adv_mean, mean_advantage",
    "advantages/max": "advantages/max, critic/advantages/max, advantage_max, adv_max, max_advantage",
    "advantages/min": "advantages/min, critic/advantages/min, advantage_min, adv_min, min_advantage",
    "entropy": "entropy, actor/entropy, entropy/mean, entropy/all/mean, approx_entropy, mean_entropy, policy_entropy, "
    "policy/entropy_avg, policy/entropy, avg_entropy, entropy_mean, token_entropy, rollout/entropy, ent, "
    "actor_entropy, "
    "train/entropy, mean_token_entropy, actor/entropy_mean, 熵, h",
    "entropy_coef": "entropy_coef, entropy_coeff, actor/entropy_coeff, actor/entropy_coef, ent_coef",
    "kl": "kl, grpo_loss/kl_divergence_mean, "
    "actor/kl_loss, critic/kl, actor/reward_kl_penalty, kl_penalty, kl_div, kl_divergence, kl_mean, "
    "mean_kl, "
    "kl/mean, kl_loss, train/kl_loss, kl_ref, ref_kl, avg_kl, kl div, kl divergence, kl_to_ref, kl_avg, "
    "kl_policy_ref, rollout/kl, loss/kl_avg, kl loss, kl_div_mean, actor/kl",
    "kl_coef": "kl_coef, actor/kl_coef, critic/kl_coeff, kl_coeff, beta, kl_beta",
    "ppo_kl": "ppo_kl, actor/ppo_kl, train/ppo_kl, approx_kl, policy/approxkl_avg, policy_kl_error, old_kl, approxkl, "
    "actor/approx_kl, old_approx_kl",
    "grad_norm": "grad_norm, actor/grad_norm, actor_grad_norm, optim/grad_norm, grad. norm, grad norm, gnorm, grad, "
    "gradient_norm, total_grad_norm, gradient norm, actor_gnorm, gradnorm, grad_l2, g_norm, policy/grad_norm, 梯度范"
    "数, "
    "train/grad_norm, grad-norm, |g|",
    "learning_rate": "learning_rate, lr, actor/lr, actor_lr, act_lr, optim/lr, lr-pg_0, train/lr-pg_0, learning rate, "
    "train/lr, 学习率",
    "clip_ratio/region_mean": "clip_ratio/region_mean, clip_ratio, actor/pg_clipfrac, ppo_clip_ratio, pg_clipfrac, "
    "train/pg_clipfrac, clip_frac, clipfrac, policy/clipfrac_avg, clip_fraction, clip_ratio/mean, ratio_clip_frac, "
    "clip_frac_mean, cispo_clip_ratio, is_masked, is_masked/mean",
    "completions/mean_length": "completions/mean_length, response_length/mean, completion_length, response_length, "
    "rollout/response_length_mean, rollout/response_len/mean, mean_gen_tokens_per_sample, "
    "train/agg/all/num_output_tokens/mean, mean generation length, gen_len, glen, mean_length, avg_length, avg_len, "
    "len, "
    "resp_len, response_len, completion_len, mean_len, avg_completion_length, mean_completion_length, avg_tokens, "
    "output_tokens, comp_len, length, seq. length, avg_response_length, mean_response_length, completion length, "
    "response length, mean_tokens, completion_tokens, mean_completion_tokens, gen_length, generation_length, "
    "val/sequence_lengths, avg_completion_len, mean_resp_len, response_length_mean, completion_length_mean, 平均长度, "
    "mean completion length, num_output_tokens, env/all/ac_tokens_per_turn, completions/mean_len, tokens",
    "completions/min_length": "completions/min_length, response_length/min, rollout/response_len/min, min_length, "
    "min_len, val/sequence_lengths_min, min_completion_length",
    "completions/max_length": "completions/max_length, response_length/max, rollout/response_len/max, "
    "max_gen_tokens_per_sample, train/agg/all/num_output_tokens/max, max_length, max_len, max_completion_length, "
    "val/sequence_lengths_max",
    "completions/mean_terminated_length": "completions/mean_terminated_length",
    "completions/clipped_ratio": "completions/clipped_ratio, response_length/clip_ratio, response_clip_ratio, "
    "rollout/truncated_rate, rollout/truncated_ratio, truncation_rate, train/agg/all/is_truncated/mean, truncation, "
    "truncated, trunc, truncated_ratio, truncation_ratio, trunc_rate, truncated_frac, clipped_ratio, trunc%, "
    "truncated%, "
    "is_truncated, truncated_rate, frac_truncated, overlong_ratio, overlong_rate, completions_clipped_ratio, "
    "generation_truncated, stop_condition/generation_truncated, trunc_frac, trunc_ratio, truncated_fraction, "
    "hit_max_len, max_len_ratio, clipped, cut_off, cutoff_rate, 1-natural_termination_rate, 1-eos_rate, "
    "1-finished_ratio, 1-val/stop_rate, length_cap_rate, clip%",
    "validity": "validity, valid, valid_ratio, valid_rate, valid_fraction, env/ratio_of_valid_action, "
    "ratio_of_valid_action, episode/valid_action_ratio, valid_action_ratio, valid_action_rate, valid_actions, "
    "valid_format_ratio, format_valid_ratio, format_validity, valid_json_rate, json_valid_rate, json_validity, "
    "valid_response_ratio, valid_answer_ratio, 1-env/invalid_action/ratio, 1-invalid_action_ratio, "
    "1-invalid_action_rate, "
    "parse_rate, parse_success, frac_valid, format_ok_rate, valid%, parsed, 1-fallback, 1-fallback_rate, "
    "1-invalid_rate, "
    "1-parse_error_rate, 1-parse_fail_rate, 1-invalid, 1-parse_failures, 1-invalid_ratio",
    "step_time": "step_time, timing_s/step, perf/time_per_step, timing/step, timing/step_total, time/step, "
    "perf/step_time, "
    "timing/train/total_step_time, total step time, total_step_time, step_time_s, sec/step, s/step, time_per_step, "
    "time/total, train_speed(s/it), 1/train_speed(iter/s), step time, time, secs, seconds, step_seconds, "
    "time_s, iter_time, sec, dt",
    "num_tokens": "num_tokens",
    "sampling/sampling_logp_difference/mean": "sampling/sampling_logp_difference/mean, logprobs_diff, "
    "train/train_rollout_logprob_abs_diff, train_rollout_logprob_abs_diff, rollout_corr/log_ppl_abs_diff, logp_diff, "
    "logprob_diff, mean_logp_diff, abs_logprob_diff",
    "sampling/sampling_logp_difference/max": "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/mean": "sampling/importance_sampling_ratio/mean, sampling_importance_ratio, "
    "rollout_corr/rollout_is_mean, mismatch/rollout_is_mean, rollout_correction/is_weight_mean, tis",
    "sampling/importance_sampling_ratio/min": "sampling/importance_sampling_ratio/min, rollout_corr/rollout_is_min",
    "sampling/importance_sampling_ratio/max": "sampling/importance_sampling_ratio/max, rollout_corr/rollout_is_max",
    "mismatch/kl": "mismatch/kl, mismatch_kl/all/mean, mismatch_kl/mean, mismatch kl, mismatch_kl, vllm_kl, "
    "rollout_corr/kl, mismatch/mismatch_kl, gen_kl_error, generation kl error, rollout_correction/kl, "
    "rollout_corr/k3_kl, sampler_kl, kl_sample_train",
    "mismatch/prob_diff_mean": "mismatch/prob_diff_mean, training/rollout_probs_diff_mean, rollout_probs_diff_mean",
    "mismatch/prob_diff_max": "mismatch/prob_diff_max, training/rollout_probs_diff_max, rollout_probs_diff_max",
    "mismatch/correlation": "mismatch/correlation, training/rollout_actor_probs_pearson_corr, "
    "rollout_actor_probs_pearson_corr",
    "mismatch/mult_prob_error": "mismatch/mult_prob_error, token_mult_prob_error",
    "off_policy/mean": "off_policy/mean, buffer/sample/avg_sampled_policy_age, "
    "max off-policy, staleness, staleness/mean, policy_lag, version_gap, "
    "off_policy/max, policy_staleness, async/staleness, off-policy, off_policy",
    "updates": "updates",
    "group_size": "group_size, num_generations",
    "reward/errors": "reward/errors, reward_errors, train/agg/all/has_error/mean, error, errors, reward_error_rate, "
    "judge_error_rate, judge_errors, grader_error_rate",
    "value_loss": "value_loss, critic/vf_loss, vf_loss, critic_loss, critic/loss, loss/value_avg, critic/value_loss",
    "gradients/cosine": "gradients/cosine, grad_cosine, gradient_cosine, grad_cos",
}

_BY_FORMAT: dict[str, dict[str, str]] = {
    "openrlhf": {"entropy_loss": "entropy", "ent_loss": "entropy", "ret": "", "return": "", "total_length": ""},
    "verl": {"actor/entropy_loss": "entropy"},
    "slime": {"entropy_loss": "entropy", "train/entropy_loss": "entropy", "ois": ""},
    "trl": {"entropy_loss": "", "completions/min_terminated_length": "", "beta": ""},
}

# A word that a stripped prefix must not turn into the policy's own metric.
_NOT_THE_POLICY = re.compile(
    r"^(critic/(?!\w*scores?/|\w*rewards?/|advantages|kl)|value|vf_|ref/|timing|perf/|system|memory|gpu|val_|optimizer/|prompt_length|"
    r"grad_norm_critic|num_turns|turns|tools/|num_)"
)
_PREFIXES = ("train/", "training/", "metrics/", "actor/", "policy/", "rollout/", "optim/", "stats/", "env/")
_EVAL = re.compile(
    r"^(?:val-core|val-aux|evaluation|eval|validation|val|test|heldout|held[_-]out|holdout|dev)[/_ -]+(?P<rest>.+)$"
)
_EVAL_NOISE = re.compile(
    r"loss|time|runtime|per_second|length|num_|step|epoch|clip|kl|entropy|std|trunc|tokens|sequence|count|turns|max$|min$|"
    r"ratio|size|temperature"
)
_PART_MEAN = re.compile(r"^(?:rewards?|reward_components?|reward_extra|reward_fn)/(?P<name>.+?)(?:/mean)?$")
_PART_TRL = re.compile(r"^rewards/(?P<name>.+)/mean$")
_PART_STD = re.compile(r"^rewards/(?P<name>.+)/std$")
_PART_CRITIC = re.compile(r"^critic/(?P<name>\w*(?:score|reward)s?)/mean$")
_PART_AFFIX = re.compile(
    r"^(?:(?P<a>[\w@. -]+?)[_ /](?:reward|rew|score|rwd)(?:_fn|_func|_function)?(?:[_/ ]?mean|_?avg)?|"
    r"(?:reward|rew|r|score)[_/](?P<b>[\w@. -]+))$"
)
_PART_BARE = re.compile(
    r"^(?:(?:train|mean|avg|batch|rollout)[_/ ])?(?P<name>"
    r"(?:(?:strict|loose|exact|final|answer|outcome|format-blind)[_ ])?"
    r"(?:acc|accuracy|bacc|balanced accuracy|corr|correct|correctness|correct_rate|correct%)|solve_rate|macro[ _-]?f1|"
    r"(?:ndcg|recall|mrr|precision)(?:@?\d+)?|solved|success|success_rate|win_rate|pass_rate|pass@?\d+|em|exact_match|f1|format|format_ok|format_rate|accuracy%|"
    r"acc%|frac_correct|正确率)(?:_mean|/mean|_avg)?$"
)
_PART_NOT = re.compile(
    r"(?:^|[_/ ])(?:std|max|min|var|loss|time|scale|scaling|weight|weights|coef|count|total|shaped|baseline|range|q\d+|"
    r"median|adv|advantage|model|margin|margins|chosen|rejected|threshold|target|best|num|p\d+)(?:$|[_/ ])"
)
_NUMBERED = re.compile(r"[:=]\s{0,4}[-+.]?\d")
_LETTER = re.compile(r"r[_/]")
_BY_A_LETTER = 0.8
_BY_WORDS = 0.85  # how sure a meaning by words alone is
_HELD_OUT = frozenset(("eval", "val", "test", "validation", "dev", "holdout", "held_out", "heldout"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a raw key leads.

    Attributes:
        name: Canonical signal name.
        rank: Trust among the raw keys of one signal; the lowest wins when a row has several.
        transform: ``""`` as is, ``"1-"`` one minus, ``"1/"`` the inverse.
        percent: The key says per cent, so that readings above 1 are divided by 100.
        confidence: How sure it is that the key means the signal; below 1 where its words alone say so.
    """

    name: str
    rank: int = 0
    transform: str = ""
    percent: bool = False
    confidence: float = 1.0

    @property
    def turns(self) -> bool:
        """Whether a raw reading is changed on its way."""
        return self.percent or bool(self.transform)

    def apply(self, value: float) -> float:
        """The canonical reading for a raw one."""
        if self.percent and abs(value) > 1:
            value /= 100
        if self.transform == _ONE_MINUS:
            return 1 - value
        if self.transform == _INVERSE:
            return 1 / value if value else float("nan")
        return value


def _table() -> dict[str, Target]:
    table: dict[str, Target] = {}
    for name, keys in _COMMON.items():
        for rank, raw in enumerate(key.strip() for key in keys.split(",")):
            transform = raw[:2] if raw[:2] in (_ONE_MINUS, _INVERSE) else ""
            key = raw[len(transform) :]
            table.setdefault(key, Target(name, rank, transform, "%" in key))
    return table


_TABLE = _table()
_CACHE_LIMIT = 4096


class KeyMap:
    """Translates raw keys of one source.

    Args:
        source: Format name, which settles words that mean different things in different trainers.
        extra: The user's own ``canonical -> raw key`` pairs; they win over everything.
    """

    def __init__(self, source: str, extra: Mapping[str, str] | None = None) -> None:
        self._source = _BY_FORMAT.get(source.split("-")[0], {})
        self._extra = {raw.strip().lower(): Target(name, -1) for name, raw in (extra or {}).items()}
        self._cache: dict[str, Target | None] = {}

    def lookup(self, raw: str) -> Target | None:
        """Where ``raw`` leads; ``None`` for a key that is no known signal."""
        try:
            return self._cache[raw]
        except KeyError:
            target = self._resolve(raw)
            if len(self._cache) < _CACHE_LIMIT:
                self._cache[raw] = target
            return target

    def _resolve(self, raw: str) -> Target | None:
        if len(raw) > 120:
            return None
        key = raw.strip().strip("'\"*`").strip().lower()
        if key in self._extra:
            return self._extra[key]
        if " / " in raw:
            # Notebooks print "rewards / format / mean".
            raw, key = raw.replace(" / ", "/"), key.replace(" / ", "/")
        if key in self._source:
            return Target(self._source[key]) if self._source[key] else None
        if key in _TABLE:
            return _TABLE[key]
        plain = key.replace(" ", "_").replace("-", "_")
        if plain in _TABLE:
            return _TABLE[plain]
        if is_chinese(key):
            english = in_english(key)
            return self._resolve(english) if english else None
        evaluation = _EVAL.match(key)
        if evaluation:
            rest = evaluation.group("rest")
            # A metric that a user has called eval/... gets the trainer's own eval_ before it.
            while again := _EVAL.match(rest):
                rest = again.group("rest")
            return None if _EVAL_NOISE.search(rest) else Target(f"eval/{rest}")
        if plain in _HELD_OUT:
            return Target("eval/score", 20, confidence=_BY_A_LETTER)
        stripped = _without_prefix(key)
        if stripped != key and not _NOT_THE_POLICY.match(key):
            target = _TABLE.get(stripped)
            if target:
                return Target(target.name, target.rank + 50, target.transform, target.percent)
        if _NOT_THE_POLICY.match(key):
            return None
        name = None if _NUMBERED.search(raw) else by_words(raw)
        if name:
            return Target(name, 200, percent="%" in key)
        if with_contrast(raw):
            return Target("frac_reward_zero_std", 300, _ONE_MINUS, "%" in key, _BY_WORDS)
        meant = None if _PART_MEAN.match(stripped) else by_meaning(raw, strangers=0)
        part = None if meant else _part(raw.strip().strip("'\"*`").strip(), stripped)
        if part:
            # "r_outcome" is a reward by a single letter.
            return replace(part, confidence=_BY_A_LETTER) if _LETTER.match(stripped) else part
        meant = meant or by_meaning(raw)
        return Target(meant[0], 300, percent="%" in key or "pct" in key, confidence=meant[1]) if meant else None


def _without_prefix(key: str) -> str:
    while True:
        for prefix in _PREFIXES:
            if key.startswith(prefix) and len(key) > len(prefix):
                key = key[len(prefix) :]
                break
        else:
            return key


def _part(raw: str, key: str) -> Target | None:
    """A named reward, under any of the ways in which sources write one; ``raw`` keeps the name's case."""
    std = _PART_STD.match(key)
    if std:
        return Target(f"rewards/{_cased(raw, std.group('name'))}/std")
    trl = _PART_TRL.match(key)
    if trl:
        return Target(f"rewards/{_cased(raw, trl.group('name'))}/mean", 0)
    if _PART_NOT.search(key):
        return None
    for pattern in (_PART_MEAN, _PART_CRITIC, _PART_AFFIX, _PART_BARE):
        match = pattern.match(key)
        if match:
            name = next(group for group in match.groups() if group)
            return Target(f"rewards/{_cased(raw, name)}/mean", 1, percent="%" in key)
    return None


def _cased(raw: str, name: str) -> str:
    start = raw.lower().find(name)
    return raw[start : start + len(name)] if start >= 0 else name
