"""Detectors: each looks at a history for one family of findings and argues for and against."""

from levelhead.watch.detectors.answers import ConstantAnswer
from levelhead.watch.detectors.base import Clue, Detector, Reading, Suspicion, View
from levelhead.watch.detectors.ended import Ended
from levelhead.watch.detectors.gradient import GradientSpike, NonFinite, ZeroGradient
from levelhead.watch.detectors.length import Lengths
from levelhead.watch.detectors.outcome import (
    JudgeFailure,
    NoBetterThanConstant,
    NoImprovement,
    RewardHacking,
    TaskBalance,
)
from levelhead.watch.detectors.policy import EntropyCollapse, EntropyExplosion, EntropySign, KlDivergence
from levelhead.watch.detectors.reward import DeadGroups, Deadlock, RewardErrors
from levelhead.watch.detectors.setup import GroupSize, LogprobMismatch, StalePolicy, TemplateMismatch
from levelhead.watch.detectors.updates import CatastrophicUpdate, StepTime, UpdateCollapse

DETECTORS: tuple[Detector, ...] = (
    NonFinite(),
    DeadGroups(),
    Deadlock(),
    EntropyCollapse(),
    EntropyExplosion(),
    EntropySign(),
    KlDivergence(),
    GradientSpike(),
    ZeroGradient(),
    Lengths(),
    LogprobMismatch(),
    StalePolicy(),
    TemplateMismatch(),
    GroupSize(),
    RewardHacking(),
    NoImprovement(),
    NoBetterThanConstant(),
    JudgeFailure(),
    RewardErrors(),
    ConstantAnswer(),
    TaskBalance(),
    CatastrophicUpdate(),
    UpdateCollapse(),
    StepTime(),
    Ended(),
)
"""All of them, in the order in which they are asked."""

__all__ = ["DETECTORS", "Clue", "Detector", "Reading", "Suspicion", "View"]
