"""Explanations of the checks of rewards, judges and walls."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "rewards/finite",
        "Reward functions return one finite number for each sampled answer, in time.",
        "Scores the drawn rollouts through the run's own collector.",
        "An answer that was not drawn here may still break them; tasks[].on_reward_error says what happens then.",
    ),
    Entry(
        "rewards/finite/TASK",
        "Reward functions return one finite number for perfect, empty and nonsense answers.",
        "Scores these answers to a few prompts of the task.",
        "It tries a handful of answers.",
    ),
    Entry(
        "rewards/dropped/TASK",
        "Where the recipe drops answers whose reward fails, most answers keep theirs.",
        "Counts the sampled answers that were dropped.",
        "Before a supervised stage a policy may fail on every answer; then it only warns.",
    ),
    Entry(
        "rewards/order/TASK",
        "The task's perfect answers score more than empty ones and nonsense, nothing scores more than they do, and "
        "each scores more under its own prompt than under another's, where the score depends on the prompt at all.",
        "Scores the oracle's answers, empty ones, nonsense, and perfect answers to other prompts; episodes are played.",
        "A reward can be in order on these and still pay for a shortcut; rewards/constant looks for the commonest one. "
        "Where the oracle is a guess (a workflow that an endpoint runs), other answers may beat it.",
    ),
    Entry(
        "rewards/attached/TASK",
        "Each rollout carries the score of its own text.",
        "Scores the drawn answers again, forwards and backwards, and compares the scores and the texts.",
        "Two answers with the same score can be exchanged unseen. Rewards that draw at random only warn.",
    ),
    Entry(
        "rewards/group-size",
        "A group has enough rollouts for its mean and deviation to mean something.",
        "Reads grpo.group_size and the estimator.",
        "It reads the recipe; whether groups have contrast depends on the policy (rewards/contrast).",
    ),
    Entry(
        "rewards/contrast/TASK",
        "Enough groups will have different rewards in them, so that there is something to learn from.",
        "Counts groups without contrast among those drawn, and predicts their share at the recipe's group size from "
        "each prompt's success rate.",
        "It speaks of the policy as it is now. Before a supervised stage it only reports.",
    ),
    Entry(
        "rewards/constant/TASK",
        "No answer that needs no reading pays so well that the policy would settle on it, nor more than right ones.",
        "Scores candidate constant answers on about a hundred training prompts, beside perfect, empty and misplaced "
        "ones.",
        "It tries the candidates that the task and its answers suggest. Shortcuts that read a little of the prompt "
        "are not found. Episodes of several turns are left to the evaluations of the run.",
    ),
    Entry(
        "judges/calibration/TASK",
        "No judge is asked that failed its calibration.",
        "Reads what 'levelhead judge calibrate' measured, where tasks[].judges.calibration names its file.",
        "It asks nothing itself. What the judge has become since shows in the anchors that training asks about.",
    ),
    Entry(
        "judges/answers/TASK",
        "The judge's endpoint answers.",
        "Sends it nine requests, and waits fifteen seconds at most for a silent one.",
        "It may still fail later, under load.",
    ),
    Entry(
        "judges/grades/TASK",
        "The judge's replies hold grades.",
        "Lets it grade perfect, empty and wrong answers to three prompts.",
        "Nine replies do not measure a rare failure.",
    ),
    Entry(
        "judges/order/TASK",
        "The judge grades perfect answers above empty and wrong ones.",
        "Compares the mean grades of the three kinds.",
        "It does not measure how finely the judge tells good answers from better ones, nor how easily it is flattered.",
    ),
    Entry(
        "isolation/wall/TASK",
        "Programs that a model writes run behind a wall on this machine.",
        "Runs an empty program the way the task will, and asks what was around it.",
        "It names the wall; it does not try to climb it.",
    ),
)
