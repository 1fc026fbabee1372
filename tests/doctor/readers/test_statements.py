"""Sentences that name a fault are told from those that fear, deny or rule one out."""

from __future__ import annotations

import pytest

from levelhead.doctor.readers.prose import Statements


def named(line: str) -> set[str]:
    statements = Statements()
    statements.take(line, 1)
    return set(statements.by_code)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("the response length collapses within 20 steps", "length-collapse"),
        ("Length collapse: answers shrink to 9 tokens", "length-collapse"),
        ("训练过程中模型回复长度持续坍缩", "length-collapse"),
        ("around step 60 we saw a length explosion", "length-runaway"),
        ("4096 token 被大量截断", "length-truncation"),
        ("all groups score alike and contribute no gradient at all", "reward-dead-groups"),
        ("8 条轨迹全是 0 或全是 1 → 组内 advantage 方差 = 0 → 梯度消失", "reward-dead-groups"),
        ("20 step 小规模训练使 Exact Match 下降到 0.62", "no-improvement"),
        ("at the end the reward became 0, and the KL divergence became extremely large", "kl-blowup"),
        ("从 step 80 开始，KL 散度持续走高", "kl-blowup"),
        ("the policy collapsed to always answering 'not exist'", "constant-answer"),
        ("by step 400 all 64 completions in every group produced the identical move", "constant-answer"),
        ("4个rollouts生成完全相同输出", "constant-answer"),
        ("advantage = 0.0 for every sample", "reward-dead-groups"),
        ("The exploit appears before the final checkpoint", "reward-hacking"),
        ("the eval curve improved while sample quality got worse", "reward-hacking"),
        ("RL rollouts were generated from the raw prompt text", "template-mismatch"),
        ("the score never improved after step 40", "no-improvement"),
        ("rewards stayed flat at 0.3 for two epochs", "no-improvement"),
        ("训练了三个 epoch，奖励一直没有上涨", "no-improvement"),
        ("보상이 200 스텝 내내 제자리", "no-improvement"),
        ("accuracy reward 从第一步起始终为 1", "saturated-all-one-reward"),
        ("the format reward is always 1.0", "saturated-all-one-reward"),
        ("reward went from 0.8 to 0.1 in a single update", "catastrophic-update"),
        ("第 900 步之后策略坍塌", "catastrophic-update"),
        ("정책 붕괴가 900 스텝에서 시작됐다", "catastrophic-update"),
        ("after step 12 the loss turns into NaN", "nonfinite"),
        ("the model never emits an EOS token", "eos-never"),
        ("eight epochs per batch made it far too off-policy", "stale-policy"),
        ("the logprob diff is abnormally large, about 0.3", "logprob-mismatch"),
        ("mismatch KL blows up after 300 steps", "logprob-mismatch"),
        ("新旧 log_prob 在同一权重下也不一致", "logprob-mismatch"),
        ("kl_loss 爆炸", "kl-blowup"),
        ("the samples are garbled from step 200 on", "entropy-explosion"),
        ("it learnt to game the verifier", "reward-hacking"),
        ("응답 길이가 폭주했다", "length-runaway"),
        ("test accuracy has been gradually falling since epoch 2", "no-improvement"),
        ("the scores oscillate and nothing else", "no-improvement"),
        ("entropy is steadily rising", "entropy-explosion"),
        ("the clip ratio is extremely high", "length-truncation"),
        ("截断率一直是 100%", "length-truncation"),
        ("the policy_loss suddenly became nan", "nonfinite"),
        ("reward plummeted at step 310", "catastrophic-update"),
        ("验证集准确率骤降", "catastrophic-update"),
        ("a sudden fall of the reward", "catastrophic-update"),
        ("there was a surge in the entropy", "entropy-explosion"),
        ("the KL keeps getting larger", "kl-blowup"),
        ("第 12 步 grad_norm 为 nan", "nonfinite"),
        ("from then on it answers !!!!!!!!!!!!", "nonfinite"),
        ("after two hours the trainer simply hangs", "run-stopped"),
        ("训练到第 40 步就卡死", "run-stopped"),
        ("the reward quickly dropped to -2", "catastrophic-update"),
        ("our KL grows rapidly from step 5 on", "kl-blowup"),
        ("the score reached its maximum of 1 within 30 steps", "saturated-all-one-reward"),
        ("now all outputs are empty", "constant-answer"),
        ("模型的回答全部都是空的", "constant-answer"),
    ],
)
def test_what_an_author_found_is_named(line: str, code: str) -> None:
    assert named(line) == {code}


@pytest.mark.parametrize(
    "line",
    [
        "| 学习率过大或熵爆炸 | KL、长度无失控趋势 | 不支持 |",
        "entropy collapse: ruled out, the held-out entropy is unchanged",
        "运行健康\uff0c未复现 reward_std 为 0 的退化",
        "no length explosion so far",
        "if the KL gets too large, raise beta",
        "watch whether the policy collapsed to always answering yes",
        "학습 붕괴 없음",
        "pg_loss 爆炸",
        "the reward never reached 1, the accuracy climbed to 0.8",
        "reward 0.1 to 1.9",
        "the reward increases and the loss decreases",
        "entropy decreases slowly, the reward rises",
        "the reward climbs while the response length shrinks to what is needed; nobody collapses",
        "eval loss is decreasing",
        "a higher KL than before is rising trust",
        "the probe saw one spike of the KL",
        "no run hangs any more",
        "the reward reached its maximum of 1.5 per turn",
        "an empty answer scores -1",
    ],
)
def test_what_is_denied_is_not(line: str) -> None:
    assert named(line) == set()


def test_a_rising_reward_beside_a_falling_evaluation_is_more_than_either() -> None:
    assert named("the training reward keeps rising, but the evaluation accuracy declines") == {
        "no-improvement",
        "reward-hacking",
    }
