"""Explanations of the checks of tokens, batching and endings."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "tokens/generation-prompt",
        "The prompt that the policy continues ends exactly where the chat template begins an answer.",
        "Renders a question with and without the generation prompt, and once more with an answer behind it, and "
        "compares what stands before the answer.",
        "It asks the template alone, with one question. What a rollout really reads is the business of tokens/context.",
    ),
    Entry(
        "tokens/context",
        "The sampler reads the messages of each prompt as the template renders them, whole, generation prompt "
        "included.",
        "Draws rollouts as the run does, decodes the ids that the sampler read, and compares them with the "
        "tokenizer's own rendering of the messages.",
        "It looks at the prompts that were drawn here. A longer one may still be cut later.",
    ),
    Entry(
        "tokens/same-prompt",
        "Supervised steps and rollouts read identical token ids for the same prompt, and a demonstration is what the "
        "task's oracle wrote.",
        "Builds the demonstrations of some prompts as the supervised stage does and compares their ids with those of "
        "the rollouts, and their text with the oracle's.",
        "It says nothing of whether the oracle's answer is right (rewards/order does), nor of tasks without an "
        "oracle. Episodes of several turns are left to the demonstrations that the environment gives.",
    ),
    Entry(
        "tokens/made-once",
        "The completions that reach the trainer are the tokens that were drawn, none added, dropped or made anew.",
        "Keeps what the sampler returns and compares it with what comes out of the collector, id for id.",
        "It cannot see a sampler that returns other tokens than it drew; agreement/sampler and batching/greedy do.",
    ),
    Entry(
        "tokens/vocabulary",
        "Every id that the tokenizer can make, stop tokens included, has a row in the model's embedding.",
        "Compares the largest id with the number of rows.",
        "A tokenizer of the right size may still be another model's: then answers are noise and rewards/contrast or "
        "the first steps say so.",
    ),
    Entry(
        "tokens/round-trip",
        "The tokenizer that a checkpoint will hold makes the same tokens as the one that the run trains with.",
        "Saves it as a checkpoint does, loads it again, and compares the tokens of a few texts that differ between "
        "tokenizer classes.",
        "It tries a few probe texts, not every one, and this version of the library alone.",
    ),
    Entry(
        "batching/greedy",
        "Each greedy token of a batch of prompts of different lengths is the likeliest one by the model's own account.",
        "Draws greedily in one batch and recomputes the logits one sequence at a time, without padding, cache or mask.",
        "A wrong distribution whose likeliest token is the right one passes here; agreement/sampler compares the "
        "numbers.",
    ),
    Entry(
        "batching/alone",
        "A prompt gets the same greedy tokens and log-probabilities in a batch as alone.",
        "Draws the same prompts together and one by one and compares tokens and numbers, ties aside.",
        "It compares the sampler with itself: what is wrong in both ways alike shows in batching/greedy.",
    ),
    Entry(
        "batching/seeded",
        "A seeded sample depends on its prompt and seed and on nothing else in the batch, so that a run can be "
        "repeated.",
        "Draws at temperature 1 in a batch and alone, with the same seed, and compares the tokens; a third may "
        "differ by rounding.",
        "It says nothing of engines that do not promise determinism, and of generators other than the in-process one.",
    ),
    Entry(
        "stops/complete",
        "A policy that writes the template's end-of-turn token is stopped there.",
        "Makes the model write that token as the third one of a completion, and looks where the completion ends.",
        "It cannot say whether the policy will ever write it; completions/clipped_ratio of the run does.",
    ),
    Entry(
        "stops/special-tokens",
        "Padding, end and first tokens do not collide in a way that hides a label or ends a prompt.",
        "Reads them off tokenizer, template and generation config, and counts them in drawn prompts and completions.",
        "It judges the ids. Whether a mask really hides a stop token is measured by loss/labels and "
        "loss/completion-only.",
    ),
)
