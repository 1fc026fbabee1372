"""The checks, a class in a file each; see :mod:`levelhead.preflight.check` for how to add one."""

from __future__ import annotations

from levelhead.preflight.check import Check
from levelhead.preflight.checks.advice import (
    BatchReuse,
    Coefficients,
    CreditByTurn,
    GroupSize,
    GrpoLearningRate,
    SftLearningRate,
)
from levelhead.preflight.checks.agreement import Dropout, SamplerAgrees, TrainerAgrees
from levelhead.preflight.checks.answer_in_prompt import AnswerInPrompt
from levelhead.preflight.checks.constant_answer import ConstantAnswer
from levelhead.preflight.checks.custom_gradient import CustomGradient
from levelhead.preflight.checks.data import EnoughHeldOut, HeldOut, ItemIds, OverlongPrompts
from levelhead.preflight.checks.duplicate_rows import DuplicateRows
from levelhead.preflight.checks.judges import JudgeAnswers, JudgeCalibration, JudgeGrades, JudgeOrder
from levelhead.preflight.checks.loss import CompletionOnly, DemonstrationLoss
from levelhead.preflight.checks.machine import MemoryEstimate, MicroBatchFits, Throughput, VisibleUpdate
from levelhead.preflight.checks.pairs import PairsClasses, PairsScores, PairsText
from levelhead.preflight.checks.prompts import GenerationPrompt, RenderedPrompts, SamePrompt
from levelhead.preflight.checks.rewards import (
    KnownRewardsFinite,
    RewardsAttached,
    RewardsDropped,
    RewardsFinite,
    RewardsRange,
    RewardsRoundTrip,
)
from levelhead.preflight.checks.rewards_cheap import RewardsCheap
from levelhead.preflight.checks.rewards_order import RewardsOrder
from levelhead.preflight.checks.rewards_steady import RewardsSteady
from levelhead.preflight.checks.sampling import MaximumLength, MinimumLength, SamplingControls, Temperature
from levelhead.preflight.checks.signs import Descent, TermSigns
from levelhead.preflight.checks.stops import DemonstrationEnd, EndOfTurn, SpecialTokens
from levelhead.preflight.checks.thoughts_and_tags import LostText, OpenedThought, SpelledTags
from levelhead.preflight.checks.tokens import TokenizerRoundTrip, ToolCalls, Vocabulary
from levelhead.preflight.checks.wall import Wall

CHECKS: tuple[type[Check], ...] = (
    # What needs no weights.
    Vocabulary,
    GenerationPrompt,
    RenderedPrompts,
    SamePrompt,
    TokenizerRoundTrip,
    EndOfTurn,
    SpecialTokens,
    DemonstrationEnd,
    SpelledTags,
    LostText,
    ToolCalls,
    OverlongPrompts,
    HeldOut,
    EnoughHeldOut,
    ItemIds,
    AnswerInPrompt,
    PairsText,
    PairsClasses,
    MinimumLength,
    MaximumLength,
    Temperature,
    Dropout,
    GroupSize,
    CreditByTurn,
    JudgeCalibration,
    GrpoLearningRate,
    SftLearningRate,
    BatchReuse,
    Coefficients,
    MemoryEstimate,
    # Rewards and judges on answers of known worth.
    Wall,
    JudgeAnswers,
    JudgeGrades,
    JudgeOrder,
    KnownRewardsFinite,
    RewardsOrder,
    RewardsCheap,
    DuplicateRows,
    RewardsRange,
    RewardsRoundTrip,
    OpenedThought,
    RewardsSteady,
    PairsScores,
    ConstantAnswer,
    CustomGradient,
    # The shared rollouts.
    VisibleUpdate,
    SamplingControls,
    RewardsFinite,
    RewardsDropped,
    RewardsAttached,
    # The shared passes.
    SamplerAgrees,
    TrainerAgrees,
    CompletionOnly,
    TermSigns,
    Descent,
    DemonstrationLoss,
    MicroBatchFits,
    Throughput,
)
"""What is checked; within each kind (:data:`levelhead.preflight.check.NEEDS`) in this order."""
