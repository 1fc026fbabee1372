"""The live guard: shown every step, it decides what to do about it; training does it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import View
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Finding, diagnose
from levelhead.guard import messages, remedy
from levelhead.guard.health import AnswerDependence, HealthTracker
from levelhead.guard.invariants import Invariants, Violation
from levelhead.guard.remedy import RecentStatistics
from levelhead.message import Phrase, chinese
from levelhead.recipe.guard import Guard as GuardSection
from levelhead.records import ActionKind, Change, CoefficientOverrides, Decision, Event, Severity, StepRecord

MIN_ROWS = 8
"""Rows before the detectors are asked, and gradient norms before one is called a spike."""
LOOK_AGAIN = 0.08
"""They are asked again when the history has grown by this share, at least four rows."""
LEAST_CONFIDENCE = 0.6
"""Confidence from which a finding is worth a word."""
NORMS = 32
"""Gradient norms that a spike is measured against."""
PRESSED = 8
"""Updates over which shortened ones are counted; half as many tell of a learning rate that is too high."""
CONSTANT = "constant-answer"
GIVE_BACK_AFTER = 24
"""Updates without a shortened one after which some of the learning rate is given back."""


AT_REST = CoefficientOverrides().to_json()


def make_guard(bounds: GuardSection) -> LiveGuard | None:
    """The guard that a recipe asks for; ``None`` where it is off."""
    return None if bounds.policy == "off" else LiveGuard(bounds)


class LiveGuard:
    """Judges updates by what they do to the policy, and steps by the run's own history.

    Args:
        bounds: The recipe's ``guard`` section.
    """

    def __init__(self, bounds: GuardSection) -> None:
        self.bounds = bounds
        self.history = History()
        self._health = HealthTracker(bounds)
        self._dependence = AnswerDependence(bounds.window)
        self._invariants = Invariants()
        self._overrides = CoefficientOverrides()
        self._good = RecentStatistics()
        self._keep = False
        self._rollbacks = 0
        self._norms: list[float] = []
        self._scales: list[float] = []
        self._calm = 0
        self._later = False
        self._told: list[str] = []
        self._seen: list[str] = []
        self._next_look = MIN_ROWS
        self._pending: list[Decision] = []

    @property
    def overrides(self) -> CoefficientOverrides:
        """Overrides of the recipe's coefficients from the next batch on."""
        return self._overrides

    @property
    def corrects(self) -> bool:
        """Whether it acts on what it sees."""
        return self.bounds.policy == "protect"

    @property
    def keeps(self) -> bool:
        """Whether the weights that sampled the batch just seen are worth coming back to."""
        return self._keep

    def probe_size(self, samples: int) -> int:
        """Sequences of a batch that an update is measured on: few beside what the update itself has cost."""
        return min(samples, self.bounds.probe or min(max(samples // 32, 4), 8))

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        """Skip an update whose gradient is absurd beside the run's own; tell of one that no term explains."""
        norm = record.values.get(metric.GRAD_NORM, 0.0)
        usual = stats.median(self._norms)
        if len(self._norms) >= MIN_ROWS and usual > 0 and norm > self.bounds.max_spike * usual:
            text = messages.GRADIENT_SPIKE(norm=norm, times=norm / usual)
            if self.corrects:
                text += messages.SKIPPED()
            evidence = {metric.GRAD_NORM: norm, "median": usual}
            return [self._decide(record.step, "gradient-spike", "skip", "warning", text, evidence)]
        if 0 < norm < float("inf"):
            self._norms = [*self._norms, norm][-NORMS:]
        return self._broken(record.step, self._invariants.before(record.values))

    def _broken(self, step: int, violations: Sequence[Violation]) -> list[Decision]:
        """Tell, once each, of what cannot be in a sound trainer."""
        new = [violation for violation in violations if violation.code not in self._told]
        self._told += [violation.code for violation in new]
        return [self._decide(step, b.code, "warn", "critical", b.text, b.evidence) for b in new]

    def judge(self, step: int, trials: Sequence[Change]) -> Decision | None:
        """Look at a step that has been taken, whole at first; ask for a shorter one where it went too far."""
        decision = remedy.trust_region(step, trials, self.bounds)
        if decision is not None and not self.corrects:
            self._pending.append(self._decide_as(decision))
            decision = None
        if decision is None or decision.params["scale"] == 0:
            scale = 0.0 if decision else trials[-1].scale
            self._scales = [*self._scales, scale][-PRESSED:]
            self._calm = self._calm + 1 if scale == 1 else 0
            self._later = trials[0].later and scale < 1
        return decision

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        """Look at a complete step."""
        self.history.append(record.step, record.values)
        self._health.add(record.values)
        self._dependence.add(record.values)
        decisions, self._pending = self._pending, []
        decisions += self._broken(record.step, self._invariants.after(record.values))
        self._keep = False
        if fallen := self._fallen(record.step):
            return [*decisions, *fallen]
        decisions += self._ease(record.step)
        decisions += self._look(record.step)
        if self.corrects and self._health.sound(self._good) and self._dependence.sound:
            self._keep, self._good = True, self._health.statistics(record.step)
        elif self._good.entropy is None:
            self._good = replace(
                self._good, entropy=self._health.newest(metric.ENTROPY), kl=self._health.newest(metric.KL)
            )
        return decisions

    def _fallen(self, step: int) -> list[Decision]:
        """Return to good weights, or stop, where validity or reward has collapsed, answers have, or nothing moves."""
        evidence: dict[str, Any] = {}
        if collapse := self._health.collapse():
            code, fall = collapse
            what = messages.VALIDITY() if code == "update-collapse" else messages.REWARD()
            text = messages.FELL(what=what, best=fall.best, now=fall.now, steps=fall.readings)
            evidence = asdict(fall)
        elif case := self._dependence.stuck(self.bounds.patience):
            code, text, evidence = CONSTANT, self._dependence.describe(case), remedy.evidence_of(case)
            if not self._dependence.has_read(case.task):  # there are no weights to go back to that did
                self._dependence.restart()
                return [self._stop(step, code, text, evidence)]
        elif self._health.locked(self._good) and not self._solved():
            code, text = "deadlock", messages.NO_CONTRAST(steps=self._health.dead)
            evidence = {"entropy": self._health.newest(metric.ENTROPY), "entropy_before": self._good.entropy}
        elif self._health.still >= self.bounds.patience and not self._solved():
            self._health.still = 0
            text = messages.NO_GRADIENT(steps=self.bounds.patience)
            return [self._stop(step, "deadlock", text, {"steps": self.bounds.patience})]
        else:
            return []
        if self._rollbacks >= self.bounds.max_rollbacks and self.corrects:
            return self._give_up(step, code, text, evidence)
        return [self._return(step, code, text, evidence)]

    def _return(self, step: int, code: str, text: Phrase, evidence: dict[str, Any]) -> Decision:
        now = self._health.statistics(step)
        evidence |= {"to_step": self._good.step, "rollbacks": self._rollbacks + 1}
        if self.corrects:
            self._rollbacks += 1
            self._overrides = remedy.after_collapse(self._overrides, self._good, now, self.bounds)
            if code == CONSTANT:  # hold a policy that reads to what it can do, and keep it sampling other answers
                self._overrides = remedy.raise_kl(remedy.more_entropy(self._overrides, self.bounds), self.bounds)
            self._scales, self._calm, self._norms = [], 0, []
            self._health.restart()
            self._invariants.restart()
            text += messages.BACK(step=self._good.step, factor=self._overrides.learning_rate)
        if code == CONSTANT or not self.corrects:  # what one answer earned is no level to be held against
            self._health.rebase()
        self._dependence.restart()
        evidence |= {
            f"{name}_knob": value for name, value in self._overrides.to_json().items() if value != AT_REST[name]
        }
        return self._decide(step, code, "rollback", "critical", text, evidence)

    def _give_up(self, step: int, code: str, text: Phrase, evidence: dict[str, Any]) -> list[Decision]:
        """Stop with the good weights restored."""
        text += messages.RETURNS(count=self._rollbacks)
        return [
            self._decide(step, code, "rollback", "critical", text, {**evidence, "to_step": self._good.step}),
            self._stop(step, code, text, evidence),
        ]

    def _stop(self, step: int, code: str, text: Phrase, evidence: Mapping[str, Any]) -> Decision:
        leading = diagnose(self.history).findings[0]
        text += messages.DIAGNOSIS(
            title=messages.title_of(leading.code), code=leading.code, confidence=leading.confidence
        )
        if leading.first_step is not None:
            text += messages.SINCE(step=leading.first_step)
        diagnosis = {"diagnosis": leading.code, "confidence": leading.confidence}
        return self._decide(step, code, "stop", "critical", text, {**evidence, **diagnosis})

    def _solved(self) -> bool:
        """Whether rewards are all alike because they are all the best."""
        return View(self.history).reward_trend.solved

    def _ease(self, step: int) -> list[Decision]:
        """Let the learning rate follow what the trust region had to cut, and give it back when it is calm."""
        cut = [scale for scale in self._scales if scale < 1]
        if 2 * len(cut) >= PRESSED:
            scales, self._scales = self._scales, []
            overrides = remedy.slower(self._overrides, remedy.cut_of(cut), self.bounds)
            if self._later:
                overrides = remedy.narrower_clip(overrides, self.bounds)
            text = messages.SLOWER(count=len(cut), all=len(scales))
            return self._turn(step, "lr-too-high", "warning", text, overrides, {"shortened": len(cut)})
        ceiling = max(self.bounds.rollback_rate**self._rollbacks, self.bounds.min_rate)
        if self._calm >= GIVE_BACK_AFTER and self._overrides.learning_rate < ceiling:
            self._calm = 0
            overrides = remedy.faster(self._overrides, 1.25, ceiling)
            text = messages.FASTER(count=GIVE_BACK_AFTER)
            return self._turn(step, "lr-too-high", "info", text, overrides, {"calm": GIVE_BACK_AFTER})
        return []

    def _look(self, step: int) -> list[Decision]:
        """Ask the doctor's detectors, more rarely the longer the run is."""
        if self.history.rows < self._next_look:
            return []
        self._next_look = self.history.rows + max(4, round(LOOK_AGAIN * self.history.rows))
        decisions: list[Decision] = []
        findings = diagnose(self.history).findings
        if self._overrides.redraws and not any(_redraws(finding.code) for finding in findings):
            text = messages.CONTRAST_AGAIN()
            decisions += self._turn(step, "reward-dead-groups", "info", text, replace(self._overrides, redraws=0))
        decisions += self._passed(step, {finding.code for finding in findings if finding.severity != "info"})
        for finding in findings:
            if finding.severity == "info" or finding.confidence < LEAST_CONFIDENCE:
                continue
            decisions += self._treat(step, finding)
            if finding.code not in self._seen:
                self._seen.append(finding.code)
                text = messages.described(finding)
                decisions.append(self._decide(step, finding.code, "warn", finding.severity, text, _shown(finding)))
        return decisions

    def _passed(self, step: int, standing: Collection[str]) -> list[Decision]:
        """Take back what an earlier look had reported and the longer curve no longer shows."""
        passed = [code for code in self._seen if code not in standing]
        self._seen = [code for code in self._seen if code in standing]
        return [
            self._decide(step, code, "warn", "info", messages.PASSED(title=messages.title_of(code)), {})
            for code in passed
        ]

    def _treat(self, step: int, finding: Finding) -> list[Decision]:
        """Do what the finding's file says that a guard does about it."""
        decisions: list[Decision] = []
        for name in CATALOGUE[finding.code].interventions:
            decisions += self._intervene(step, finding, remedy.Intervention(name))
        return decisions

    def _intervene(self, step: int, finding: Finding, intervention: remedy.Intervention) -> list[Decision]:
        """Carry out one intervention, where the run gives it something to act on."""
        overrides, code = self._overrides, finding.code
        text = title = messages.title_of(code)
        match intervention:
            case remedy.Intervention.RAISE_ENTROPY if not self._solved():
                overrides, text = remedy.more_entropy(overrides, self.bounds), messages.RAISED_ENTROPY(title=title)
            case remedy.Intervention.LOWER_ENTROPY:
                overrides, text = remedy.less_entropy(overrides), messages.LOWERED_ENTROPY(title=title)
            case remedy.Intervention.RAISE_KL if (self._health.newest(metric.KL) or 0) > 0:
                overrides, text = remedy.raise_kl(overrides, self.bounds), messages.RAISED_KL(title=title)
            case remedy.Intervention.REDRAW if not self._solved():
                return self._redraw(step, code, messages.RESAMPLED(title=title))
        return self._turn(step, code, "warning", text, overrides, _shown(finding))

    def _redraw(self, step: int, code: str, text: Phrase) -> list[Decision]:
        """Sample other groups in place of those without contrast, and warmer where they have had none for a window."""
        share = {metric.ZERO_STD: self._health.newest(metric.ZERO_STD)}
        more = remedy.more_draws(self._overrides, self.bounds)
        decisions = self._turn(step, code, "warning", text, more, share, "resample")
        if self._health.dead >= self.bounds.window:
            warmer = remedy.warmer(self._overrides, self.bounds)
            decisions += self._turn(step, code, "warning", text + messages.WARMER(), warmer, share)
        return decisions

    def _turn(
        self,
        step: int,
        code: str,
        severity: Severity,
        text: Phrase,
        overrides: CoefficientOverrides,
        evidence: Mapping[str, Any] | None = None,
        action: ActionKind = "adapt",
    ) -> list[Decision]:
        """Change coefficients, if that changes any of them."""
        old, new = self._overrides.to_json(), overrides.to_json()
        changed = {name: value for name, value in new.items() if value != old[name]}
        if not changed or not self.corrects:
            return []
        self._overrides = overrides
        shown = {**(evidence or {}), **{f"{name}_from": old[name] for name in changed}, **changed}
        return [self._decide(step, code, action, severity, text, shown, changed)]

    def _decide(
        self,
        step: int,
        code: str,
        action: ActionKind,
        severity: Severity,
        text: Phrase,
        evidence: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
    ) -> Decision:
        decision = Decision(action, Event(step, code, severity, text, action, evidence), params or {})
        return decision if self.corrects else self._decide_as(decision)

    @staticmethod
    def _decide_as(decision: Decision) -> Decision:
        """The same as a word instead of a deed."""
        if decision.kind == "warn":
            return decision
        evidence = {**decision.event.evidence, "would": decision.kind}
        message = decision.event.message
        text = Phrase(message, chinese(message)) + messages.OBSERVED(deed=messages.DEEDS[decision.kind]())
        return Decision("warn", replace(decision.event, message=text, action="warn", evidence=evidence))

    def recall(self, record: StepRecord) -> None:
        """Take in a record of before a resumption, without judging it."""
        self.history.append(record.step, record.values)

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`recall` does not restore, as JSON."""
        return {
            "pulse": self._health.state_dict(),  # this key and the next are those of checkpoints
            "knobs": self._overrides.to_json(),
            "good": asdict(self._good),
            "rollbacks": self._rollbacks,
            "norms": self._norms,
            "scales": self._scales,
            "calm": self._calm,
            "later": self._later,
            "told": self._told,
            **({"seen": self._seen} if self._seen else {}),  # checkpoints of before have none
            "next_look": self._next_look,
            "invariants": self._invariants.state_dict(),
            "reading": self._dependence.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._health.load_state_dict(state["pulse"])
        self._overrides = CoefficientOverrides(**state["knobs"])
        self._good = RecentStatistics(**state["good"])
        self._rollbacks, self._calm = int(state["rollbacks"]), int(state["calm"])
        self._norms, self._scales = list(state["norms"]), list(state["scales"])
        self._later, self._told = bool(state["later"]), list(state["told"])
        self._next_look, self._seen = int(state["next_look"]), list(state.get("seen", ()))
        if "invariants" in state:  # not in checkpoints of before they were watched
            self._invariants.load_state_dict(state["invariants"])
        if "reading" in state:  # nor in those of before answers were
            self._dependence.load_state_dict(state["reading"])


def _redraws(code: str) -> bool:
    """Whether a finding is met by sampling other groups."""
    return remedy.Intervention.REDRAW in CATALOGUE[code].interventions


def _shown(finding: Finding) -> dict[str, Any]:
    """The readings of a finding, as evidence of an event."""
    shown: dict[str, Any] = {"confidence": round(finding.confidence, 3), "first_step": finding.first_step}
    shown["arguments"] = [argument.key for argument in finding.evidence if argument.weight > 0]
    return shown | {f"{reading.metric}@{reading.step:g}": reading.value for reading in finding.readings[:4]}
