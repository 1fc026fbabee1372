"""The files on the page of environments run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from levelhead.recipe.environments import Verifiers
from levelhead.scaffold.model import preset_folder
from tasks.test_tools import TOOL_TEMPLATE

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
FILES = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL))


def test_the_environment_written_for_trl_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(preset_folder("base-tiny"))
    tokenizer.chat_template = TOOL_TEMPLATE
    AutoModelForCausalLM.from_pretrained(preset_folder("base-tiny")).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    script = FILES["counter.py"].replace("Qwen/Qwen2.5-0.5B-Instruct", str(tmp_path / "model"))
    assert str(tmp_path) in script
    short = script.replace("max_steps=20", "max_steps=1, use_cpu=True").replace("trainer.train()", "")
    quick = "few = trainer.recipe.eval.model_copy(update={'items': 2, 'final_items': 2})\n"
    quick += "trainer.recipe = trainer.recipe.model_copy(update={'check': False, 'eval': few})\ntrainer.train()\n"
    (tmp_path / "counter.py").write_text(short + quick, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("counter.py", run_name="__main__")
    assert "rewards/Counter/mean" in (tmp_path / "counter" / "metrics.jsonl").read_text(encoding="utf-8")


async def test_the_environment_of_verifiers_loads_and_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers.v1", reason="needs the package verifiers (pip install 'levelhead[verifiers]')")
    from levelhead.contrib.verifiers import VerifiersTask

    (tmp_path / "sums_env.py").write_text(FILES["sums_env.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(tmp_path))
    task = VerifiersTask(Verifiers.model_validate(yaml.safe_load(FILES["sums.yaml"])["tasks"][0]))
    prompt = next(task.prompts("train", 0))
    a, b = re.findall(r"\d", prompt.messages[0]["content"])
    for answer, reward in ((str(int(a) + int(b)), 1.0), ("none", 0.0)):
        episode = task.episode(prompt)
        await episode.observe()
        step = await episode.act(answer)
        assert step.score is not None
        assert (step.done, step.score.total) == (True, reward)
        await episode.close()
    await task.close()
