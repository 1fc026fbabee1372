from __future__ import annotations

import random
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import watch_scenarios as scenarios
from levelhead.diagnosis import findings, pages
from levelhead.diagnosis.detectors import DETECTORS, View
from levelhead.diagnosis.findings import (
    CATALOGUE,
    FOLDER,
    Scaled,
    Text,
    family_of,
    read_entry,
    shared_evidence,
    shared_remedies,
    wording,
)
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import VERDICTS
from levelhead.errors import InputError
from levelhead.guard.remedy import Intervention
from levelhead.recipe import Recipe

ROOT = Path(__file__).parents[2]
PROMISED = [
    "reward-dead-groups",
    "no-learning-signal-all-zero-reward",
    "saturated-all-one-reward",
    "deadlock",
    "entropy-collapse",
    "entropy-explosion",
    "kl-blowup",
    "gradient-spike",
    "catastrophic-update",
    "update-collapse",
    "nonfinite",
    "length-truncation",
    "length-collapse",
    "length-runaway",
    "length-fixed",
    "eos-never",
    "lr-too-high",
    "group-size-too-small",
    "advantage-two-valued",
    "zero-gradient-despite-signal",
    "logprob-mismatch",
    "stale-policy",
    "template-mismatch",
    "prompt-in-loss",
    "entropy-sign",
    "reward-hacking",
    "no-improvement",
    "task-imbalance",
    "gradient-conflict",
    "judge-failure",
    "reward-errors",
    "constant-answer",
    "step-time-collapse",
    "reference-drift",
    "rewards-stopped",
    "run-stopped",
    "healthy",
    "learns",
    "undecided",
]


def test_every_promised_finding_is_in_the_catalogue() -> None:
    assert set(PROMISED) <= set(CATALOGUE)


def test_every_detector_raises_only_findings_of_the_catalogue() -> None:
    codes = {code for detector in DETECTORS for code in detector.codes}
    assert codes <= set(CATALOGUE)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_an_entry_is_complete_in_both_languages(code: str) -> None:
    entry = CATALOGUE[code]
    texts = [entry.title, entry.meaning, entry.mechanism, entry.differs, entry.confirm]
    texts += [remedy.why for remedy in entry.remedies]
    for text in texts:
        assert text.en
        assert any("\u4e00" <= character <= "\u9fff" for character in text.zh)
    assert set(entry.explains) <= set(CATALOGUE) - {code}
    assert entry.remedies or code in VERDICTS
    assert all(remedy.source and remedy.recipe for remedy in entry.remedies)


def _sections(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """The object schemas that a node may stand for, references and unions followed."""
    if "$ref" in node:
        return _sections(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    if "properties" in node:
        return [node]
    options = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    if "items" in node:
        options.append(node["items"])
    return [found for option in options for found in _sections(schema, option)]


def _known(key: str, schema: dict[str, Any]) -> bool:
    nodes = [schema]
    for part in key.replace("[]", "").split("."):
        sections = [section for node in nodes for section in _sections(schema, node)]
        nodes = [section["properties"][part] for section in sections if part in section["properties"]]
        if not nodes:
            return False
    return True


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_remedies_set_keys_that_a_recipe_has(code: str) -> None:
    schema = Recipe.model_json_schema()
    for remedy in CATALOGUE[code].remedies:
        for key in remedy.recipe:
            assert _known(key, schema), f"{code}: a recipe has no {key}"


def test_the_key_check_notices_a_key_that_does_not_exist() -> None:
    assert not _known("grpo.optimizer.learning_rat", Recipe.model_json_schema())


def test_a_scaled_setting_uses_what_the_log_shows() -> None:
    assert Scaled(0.2, "learning_rate").resolve(5e-6) == 1e-6
    assert Scaled(0.2, "learning_rate").resolve(None) == "x0.2"
    assert Scaled(2, "completions/max_length", whole=True).resolve(511.6) == 1023


def test_settings_are_in_the_words_of_the_trainer() -> None:
    assert [family_of(f) for f in ("trl-state", "ms-swift", "verl-file", "openrlhf")] == [
        "trl",
        "trl",
        "verl",
        "recipe",
    ]
    remedy = CATALOGUE["kl-blowup"].remedies[0]
    assert "beta" in remedy.settings("trl")
    assert "grpo.kl.coef" in remedy.settings("recipe")


def test_every_argument_that_scenarios_bring_up_is_worded() -> None:
    missing = set()
    for scenario in [*scenarios.HEALTHY.values(), *(s for s, _ in scenarios.UNHEALTHY.values())]:
        history = History()
        for i, row in enumerate(scenarios.rows(scenario, 3, 40)):
            history.append(i + 1, row)
        view = View(history)
        for candidate in (s for d in DETECTORS for s in d.examine(view)):
            for c in candidate.evidence:
                if any(wording(candidate.code, c.key, c.numbers, language) == c.key for language in ("en", "zh")):
                    missing.add(c.key)
    assert not missing


def _wordings() -> list[tuple[str, Text]]:
    """Every worded argument, those of one finding and those that several share."""
    own = [pair for entry in CATALOGUE.values() for pair in entry.evidence.items()]
    return [*own, *shared_evidence().items()]


def test_no_argument_is_worded_in_two_places() -> None:
    keys = [key for key, _ in _wordings()]
    assert len(keys) == len(set(keys))


def test_both_wordings_of_an_argument_use_the_same_numbers() -> None:
    for key, text in _wordings():
        fields = [{name for _, name, _, _ in string.Formatter().parse(t) if name} for t in (text.en, text.zh)]
        assert fields[0] >= fields[1], key


def test_every_argument_in_the_source_is_worded() -> None:
    folder = ROOT / "src" / "levelhead" / "diagnosis"
    source = "".join(p.read_text(encoding="utf-8") for p in [*folder.glob("detectors/*.py"), folder / "ranking.py"])
    used = set(re.findall(r'add\(\s*[^"=;]*?"([a-z]+(?:-[a-z]+)+)"', source))
    assert used
    assert used <= {key for key, _ in _wordings()}


def test_the_pages_are_in_step_with_the_catalogue() -> None:
    folder = ROOT / "docs" / "findings"
    pages_there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    assert pages_there == pages.render(), "run: python -m levelhead.diagnosis.pages docs/findings"


def test_pages_are_written_only_where_they_differ(tmp_path: Path) -> None:
    assert len(pages.write(tmp_path)) == len(CATALOGUE) + 1
    victim = random.Random(0).choice(sorted(tmp_path.glob("*.md")))
    victim.write_text("stale", encoding="utf-8")
    assert pages.write(tmp_path) == [victim]


def test_every_intervention_is_one_that_the_guard_knows() -> None:
    interventions = {name for entry in CATALOGUE.values() for name in entry.interventions}
    assert interventions == set(Intervention)


def test_every_shared_remedy_is_used_by_several_findings() -> None:
    uses = Counter(id(remedy) for entry in CATALOGUE.values() for remedy in entry.remedies)
    assert all(uses[id(remedy)] > 1 for remedy in shared_remedies().values())


def test_a_code_from_a_log_is_never_made_a_path() -> None:
    assert CATALOGUE.get("../remedies") is None
    assert "../findings/deadlock" not in CATALOGUE


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("severity: critical", "severity: grave", "severity"),
        ("title:\n  en: Deadlock\n", "title:\n", "title: en"),
        ("  zh: 死锁\n", "  zh: 死锁\n  fr: blocage\n", "title: fr"),
        ("  - entropy-collapse\n", "  - entropy-colapse\n", "explains"),
        ("  - use: larger-groups\n", "  - use: larger-group\n", "use"),
        ("of: learning_rate}", "off: learning_rate}", "recipe.grpo.optimizer.learning_rate"),
        ("remedies:\n", "remedy:\n", "remedy"),
        ("severity: critical", "severity: [", "cannot be read"),
    ],
)
def test_a_mistake_in_a_finding_is_told_by_file_and_key(tmp_path: Path, old: str, new: str, key: str) -> None:
    path = tmp_path / "deadlock.yaml"
    text = (FOLDER / path.name).read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=f"deadlock.yaml: .*{re.escape(key)}"):
        read_entry(path, CATALOGUE.codes)


def test_only_the_findings_that_are_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(findings, "read_entry", lambda path, codes: read.append(path.stem) or read_entry(path, codes))
    catalogue = findings.Catalogue(FOLDER)
    assert catalogue["deadlock"] is catalogue["deadlock"]
    assert "healthy" in catalogue
    assert read == ["deadlock"]
