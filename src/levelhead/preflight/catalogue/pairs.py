"""Explanations of the checks that rewards survive their way, and that prompts and answers belong together."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "rewards/round-trip/TASK",
        "An answer scores the same after it has been tokens.",
        "Encodes and decodes answers of known worth and scores both texts.",
        "It looks at perfect and made-up answers, not at everything that a policy may write.",
    ),
    Entry(
        "rewards/total/TASK",
        "The total of a score is the weighted sum of its parts.",
        "Adds the parts of scored answers by the weights that the task declares.",
        "A task that declares no weights has nothing to be held against.",
    ),
    Entry(
        "rewards/range/TASK",
        "A perfect answer gets the declared most, the worst the declared least, and nothing lies outside.",
        "Scores perfect, empty and wrong answers and compares with the range that the task declares.",
        "A function without tasks[].reward_range declares none. The worst answer may not be among those tried.",
    ),
    Entry(
        "rewards/shaped",
        "Rewards reach the estimator as tasks[].shaping says.",
        "Sends made-up rewards through the run's own path and repeats the shaping by its formula.",
        "Of a running z-score, which depends on what came before, the order alone is held against it.",
    ),
    Entry(
        "rewards/steady/TASK",
        "A score depends on the answer alone.",
        "Scores the same answers again: after another call, with other global random numbers, at another time, in "
        "another order, in another batch and in another process.",
        "A reward that changes once in hundreds of calls may change in none of these.",
    ),
    Entry(
        "pairs/rollouts",
        "Every rollout has read the prompt of its group.",
        "Compares the tokens that were read with the group's rendered prompt.",
        "It looks at the groups drawn for the preflight.",
    ),
    Entry(
        "pairs/demonstrations",
        "In a batch of demonstrations each prompt stands with its own perfect answer.",
        "Decodes a supervised batch and compares both sides with the task's.",
        "It looks at one batch, and trusts the task's oracle; that one is looked at by the next two.",
    ),
    Entry(
        "pairs/scores/TASK",
        "Perfect answers score better under their own prompts than under others'.",
        "Scores answers under permuted prompts: a permutation test with 999 permutations.",
        "Where most prompts have one answer, nothing is compared; nor are answers and a reward shuffled alike.",
    ),
    Entry(
        "pairs/text/TASK",
        "Perfect answers share rare words with their own prompts, or are likelier there by a pretrained policy.",
        "A permutation test over shared words, weighted by rarity, and over log-probabilities.",
        "Answers that share no words with their prompts say nothing to an untrained policy. In thousands of rows it "
        "sees a shift rather than a shuffle.",
    ),
)
