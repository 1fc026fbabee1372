"""Detectors: each looks at a history for one family of findings and argues for and against."""

from levelhead.diagnosis.detectors.answers import ConstantAnswer
from levelhead.diagnosis.detectors.base import Candidate, Detector, Evidence, Reading, View
from levelhead.diagnosis.detectors.deadlock import Deadlock
from levelhead.diagnosis.detectors.ended import Ended
from levelhead.diagnosis.detectors.engines import LogprobMismatch, StalePolicy
from levelhead.diagnosis.detectors.entropy import EntropyCollapse, EntropyExplosion, EntropySign
from levelhead.diagnosis.detectors.gradient import GradientSpike, NonFinite, ZeroGradient
from levelhead.diagnosis.detectors.improvement import NoBetterThanConstant, NoImprovement
from levelhead.diagnosis.detectors.judge import JudgeFailure, RewardErrors
from levelhead.diagnosis.detectors.kl import KlDivergence
from levelhead.diagnosis.detectors.length import Lengths
from levelhead.diagnosis.detectors.outcome import FallingStratum, RewardHacking, TaskBalance
from levelhead.diagnosis.detectors.reward import DeadGroups
from levelhead.diagnosis.detectors.setup import GroupSize, TemplateMismatch
from levelhead.diagnosis.detectors.stands import Outcomes
from levelhead.diagnosis.detectors.updates import CatastrophicUpdate, HiddenUpdates, StepTime, UpdateCollapse

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
    Outcomes(),
    NoImprovement(),
    NoBetterThanConstant(),
    JudgeFailure(),
    RewardErrors(),
    ConstantAnswer(),
    TaskBalance(),
    FallingStratum(),
    CatastrophicUpdate(),
    UpdateCollapse(),
    StepTime(),
    HiddenUpdates(),
    Ended(),
)
"""All of them, in the order in which they are asked."""

__all__ = ["DETECTORS", "Candidate", "Detector", "Evidence", "Reading", "View"]
