"""Settings of one simulated run: what is sound to choose, and the places where a fault can be put."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorylib.worlds import WORLDS, World

ESTIMATORS = ("grpo", "grpo", "grpo", "dr_grpo", "rloo", "reinforce_pp")
LOSSES = ("grpo", "grpo", "dapo", "dapo", "dr_grpo", "gspo", "cispo")
SCHEDULES = ("constant", "constant", "linear", "cosine", "warmup")
STEPS = (20, 500)
SLOW = 0.35
"""Share of sound runs whose rate is low."""


@dataclass(slots=True)
class Plan:
    """One run.  The first part is what a recipe holds; the second are faults, none of them unless set."""

    world: str
    seed: int
    steps: int = 100
    prompts: int = 24
    batch: int = 8
    group: int = 8
    estimator: str = "grpo"
    loss: str = "grpo"
    adam: bool = True
    rate: float = 0.05
    schedule: str = "constant"
    beta: float = 0.0
    bonus: float = 0.0
    epochs: int = 1
    clip: float = 0.2
    max_norm: float = 1.0
    noise: float = 0.0
    flips: float = 0.0
    engine_noise: float = 0.01
    token_scale: float = 40.0  # mean tokens of text that one simulated token stands for
    filler: int = 0
    slow: bool = False

    # Faults: when they begin (share of the run), and what they do from then on.
    begin: float = 0.0
    rate_factor: float = 1.0
    rate_stop: float = 2.0  # share of the run after which the rate is 0
    sign: float = 1.0  # of the advantage
    shuffle: float = 0.0  # share of rewards that go to another answer
    masked: float = 0.0  # share of tokens that the loss leaves out
    frozen: bool = False
    gradient_scale: float = 1.0
    accumulates: bool = False
    decay: float = 0.0
    least_update: float = 0.0  # smaller ones are lost to rounding
    adam_eps: float = 1e-8
    zero_reward: float = 0.0  # share of rewards that are 0 whatever the answer
    constant_reward: bool = False
    capped: float = 9e9
    reward_scale: float = 1.0
    normalised: bool = True
    copies: float = 0.0  # share of groups of one and the same answer
    sampler_temperature: float = 1.0
    same_temperature: bool = False  # whether the trainer knows of it
    sampler_noise: float = 0.0
    lag: int = 0
    never_synced: bool = False
    top_k: int = 0
    no_end: bool = False
    end_untrained: bool = False
    room: float = 1.0  # share of the length that answers may have
    cut_reward: bool = False  # whether cut answers get nothing
    hack: float = 0.0  # paid for each of the hack tokens, whatever the task says
    per_token: float = 0.0  # paid for each token
    wrong_reference: float = 0.0
    nan_from: float = 2.0
    nan_loss_only: bool = False
    jolt_at: float = 2.0
    jolt: float = 0.0  # an update that many times too large
    jump_at: float = 2.0  # where a curriculum leaves the policy behind
    clipped_off: bool = False
    summed: bool = False  # loss summed over tokens in place of their mean
    wrong_prompt: bool = False  # rewards judged by another prompt's answer
    slow_factor: float = 1.0  # on the time of a step from ``begin`` on
    errors: float = 0.0
    harmless_spike: float = 0.0

    @property
    def family(self) -> World:
        return WORLDS[self.world]


def sound_plan(world: str, seed: int, rng: np.random.Generator) -> Plan:
    """Draw what a sound run of a family might choose."""
    family = WORLDS[world]
    steps = int(np.exp(rng.uniform(np.log(STEPS[0]), np.log(STEPS[1] if rng.random() < 0.25 else 200))))
    adam = bool(rng.random() < 0.8)
    # A run that is to come somewhere has a rate by its length.
    rate = float(np.exp(rng.uniform(np.log(0.02), np.log(0.08)))) * (1.5 if steps < 60 else 1.0)
    plan = Plan(
        world,
        seed,
        steps=steps,
        prompts=int(rng.choice([8, 16, 32])),
        batch=int(rng.choice([4, 8, 16])),
        group=int(rng.choice([4, 8, 8, 16])),
        estimator=str(rng.choice(ESTIMATORS)),
        loss=str(rng.choice(LOSSES)),
        adam=adam,
        rate=rate if adam else rate * 40,
        schedule=str(rng.choice(SCHEDULES)),
        beta=float(rng.choice([0.0, 0.0, 0.001, 0.01, 0.04])),
        bonus=float(rng.choice([0.0, 0.0, 0.0, 0.001])),
        epochs=int(rng.choice([1, 1, 1, 2, 4])),
        clip=float(rng.choice([0.2, 0.2, 0.28])),
        max_norm=float(rng.choice([0.2, 1.0, 1.0])),
        noise=float(rng.uniform(*family.noise)),
        flips=float(rng.uniform(*family.flips)),
        engine_noise=float(rng.choice([0.0, 0.005, 0.02])),
        token_scale=float(np.exp(rng.uniform(np.log(5), np.log(200)))),
        harmless_spike=float(rng.choice([0.0, 0.0, 0.0, 0.0, 30.0])),
    )
    plan.batch = min(plan.batch, plan.prompts)
    if rng.random() < SLOW:
        # Careful rates, as most people choose them for networks: little is to be seen in the time that is shown.
        plan.slow, plan.rate = True, plan.rate * float(np.exp(rng.uniform(np.log(0.05), np.log(0.4))))
    if not family.ends:
        plan.filler = int(rng.choice([0, 6, 6, 20]))
    return plan
