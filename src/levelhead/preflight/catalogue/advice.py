"""Explanations of the checks of memory and time, and of advice."""

from __future__ import annotations

from levelhead.preflight.entry import Entry

ENTRIES = (
    Entry(
        "memory/estimate",
        "Training is estimated to fit into memory.",
        "Adds up weights, gradients, optimizer, activations, reference and cache, and compares the sum with the "
        "memory of the device.",
        "It is an estimate, good to a third; what else uses the device is not known to it.",
    ),
    Entry(
        "memory/micro-batch",
        "A micro-batch of the recipe's size fits, forward and backward.",
        "Computes one: on a GPU the fullest that the recipe allows, on a CPU 2,048 tokens of it.",
        "The optimizer's state does not exist yet, and on a CPU the rest of the micro-batch is not tried.",
    ),
    Entry(
        "throughput/step",
        "Nothing: it says how long a step will take, by part.",
        "Scales what sampling, scoring and training took here to the recipe's batch.",
        "Larger batches are cheaper by the token than it says, and a policy that writes longer answers takes longer.",
    ),
    Entry(
        "advice/grpo-learning-rate",
        "The learning rate of GRPO lies where published runs of models of this size have held.",
        "Compares it with a published range, with and without LoRA.",
        "For models below 100M parameters there is no published range, and it always passes.",
    ),
    Entry(
        "advice/sft-learning-rate",
        "The learning rate of the supervised stage is not above what models of this size bear.",
        "Compares it with a bound, with and without LoRA.",
        "For models below 100M parameters it always passes.",
    ),
    Entry(
        "advice/groups",
        "An update sees more than one prompt, and groups have four rollouts or more.",
        "Divides the batch by group size and updates a batch.",
        "It reads the recipe; how much alike the prompts of an update are it does not know.",
    ),
    Entry(
        "advice/reuse",
        "A batch of rollouts is not used for more updates than clipping can correct.",
        "Counts the updates a batch.",
        "How far each update moves the policy depends on the learning rate; the guard measures it.",
    ),
    Entry(
        "advice/coefficients",
        "The coefficients of KL and entropy are not so large that they drown the reward.",
        "Compares those that tasks start from with published ones.",
        "Controllers may move them later; the guard watches that.",
    ),
    Entry(
        "FAMILY/error",
        "The checks of a family could be made at all.",
        "Catches what broke them off, which would break training off as well, and says it in one line.",
        "The remaining checks of that family are not made.",
    ),
)
