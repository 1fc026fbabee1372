"""The checks, a class in a file each; see :mod:`levelhead.preflight.check` for how to add one."""

from __future__ import annotations

from levelhead.preflight.check import Check
from levelhead.preflight.checks.answer_in_prompt import AnswerInPrompt
from levelhead.preflight.checks.batch_reuse import BatchReuse
from levelhead.preflight.checks.coefficients import Coefficients
from levelhead.preflight.checks.completion_only import CompletionOnly
from levelhead.preflight.checks.constant_answer import ConstantAnswer
from levelhead.preflight.checks.credit_by_turn import CreditByTurn
from levelhead.preflight.checks.custom_gradient import CustomGradient
from levelhead.preflight.checks.demonstration_loss import DemonstrationLoss
from levelhead.preflight.checks.descent import Descent
from levelhead.preflight.checks.dropout import Dropout
from levelhead.preflight.checks.duplicate_rows import DuplicateRows
from levelhead.preflight.checks.end_of_turn import EndOfTurn
from levelhead.preflight.checks.enough_held_out import EnoughHeldOut
from levelhead.preflight.checks.generation_prompt import GenerationPrompt
from levelhead.preflight.checks.group_size import GroupSize
from levelhead.preflight.checks.grpo_learning_rate import GrpoLearningRate
from levelhead.preflight.checks.held_out import HeldOut
from levelhead.preflight.checks.item_ids import ItemIds
from levelhead.preflight.checks.judge_answers import JudgeAnswers
from levelhead.preflight.checks.judge_calibration import JudgeCalibration
from levelhead.preflight.checks.judge_grades import JudgeGrades
from levelhead.preflight.checks.judge_order import JudgeOrder
from levelhead.preflight.checks.known_rewards_finite import KnownRewardsFinite
from levelhead.preflight.checks.lost_text import LostText
from levelhead.preflight.checks.made_once import MadeOnce
from levelhead.preflight.checks.max_length import MaximumLength
from levelhead.preflight.checks.memory_estimate import MemoryEstimate
from levelhead.preflight.checks.micro_batch_fits import MicroBatchFits
from levelhead.preflight.checks.min_length import MinimumLength
from levelhead.preflight.checks.opened_thought import OpenedThought
from levelhead.preflight.checks.overlong_prompts import OverlongPrompts
from levelhead.preflight.checks.pairs_classes import PairsClasses
from levelhead.preflight.checks.pairs_scores import PairsScores
from levelhead.preflight.checks.pairs_text import PairsText
from levelhead.preflight.checks.reference import Reference
from levelhead.preflight.checks.rendered_prompts import RenderedPrompts
from levelhead.preflight.checks.rewards_attached import RewardsAttached
from levelhead.preflight.checks.rewards_cheap import RewardsCheap
from levelhead.preflight.checks.rewards_dropped import RewardsDropped
from levelhead.preflight.checks.rewards_finite import RewardsFinite
from levelhead.preflight.checks.rewards_order import RewardsOrder
from levelhead.preflight.checks.rewards_range import RewardsRange
from levelhead.preflight.checks.rewards_round_trip import RewardsRoundTrip
from levelhead.preflight.checks.rewards_steady import RewardsSteady
from levelhead.preflight.checks.same_prompt import SamePrompt
from levelhead.preflight.checks.sampler_agrees import SamplerAgrees
from levelhead.preflight.checks.sampling_controls import SamplingControls
from levelhead.preflight.checks.sft_learning_rate import SftLearningRate
from levelhead.preflight.checks.sign_audit import SignAudit
from levelhead.preflight.checks.special_tokens import SpecialTokens
from levelhead.preflight.checks.spelled_tags import SpelledTags
from levelhead.preflight.checks.stop_token import StopToken
from levelhead.preflight.checks.temperature import Temperature
from levelhead.preflight.checks.throughput import Throughput
from levelhead.preflight.checks.tokenizer_round_trip import TokenizerRoundTrip
from levelhead.preflight.checks.tool_calls import ToolCalls
from levelhead.preflight.checks.trainer_agrees import TrainerAgrees
from levelhead.preflight.checks.visible_update import VisibleUpdate
from levelhead.preflight.checks.vocabulary import Vocabulary
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
    MadeOnce,
    StopToken,
    SamplingControls,
    RewardsFinite,
    RewardsDropped,
    RewardsAttached,
    # The shared passes.
    SamplerAgrees,
    TrainerAgrees,
    Reference,
    CompletionOnly,
    SignAudit,
    Descent,
    DemonstrationLoss,
    MicroBatchFits,
    Throughput,
)
"""What is checked; within each kind (:data:`levelhead.preflight.check.NEEDS`) in this order."""
