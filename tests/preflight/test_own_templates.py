"""A chat template of the user's own is the one that holds, whatever the model; what does not fit the model is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.probe import setup_of
from levelhead.preflight import preflight

TURNS = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + 'END\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
SOUND = TURNS.replace("END", "<|im_end|>")
OWN = {
    "a system turn first": "{{ '<|im_start|>system\\nYou count.<|im_end|>\\n' }}" + SOUND,
    "a mark behind each turn": SOUND.replace("<|im_end|>", "<|im_end|>%"),
    "capital roles": SOUND.replace("m['role']", "m['role'].upper()").replace("assistant", "ASSISTANT"),
}


@pytest.mark.parametrize("preset", ["tiny", "base-tiny"])
@pytest.mark.parametrize("template", OWN.values(), ids=OWN)
def test_a_template_of_ones_own_holds_with_every_preset(preset: str, template: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(template, encoding="utf-8")
    codec = setup_of(f"model.preset={preset}", f"model.chat_template={path}").policy.codec
    shown = codec.decode(codec.render([{"role": "user", "content": "Hi"}]))
    assert any(mark in shown for mark in ("You count.", "%", "USER")), shown


UNFIT = {
    "another model's end": ("</s>", "", "stops/special-tokens", "closes an assistant's turn with no token of its own"),
    "an end of characters": (
        "[END]",
        "",
        "stops/special-tokens",
        "closes an assistant's turn with no token of its own",
    ),
    "Llama 3's end": ("<|eot_id|>", "", "stops/special-tokens", "closes an assistant's turn with no token of its own"),
    "another role": ("<|im_end|>", "bot", "tokens/generation-prompt", "<|im_start|>bot"),
}


@pytest.mark.parametrize(("end", "role", "check", "words"), UNFIT.values(), ids=UNFIT)
def test_a_template_whose_end_or_role_is_not_the_models_is_named(
    end: str, role: str, check: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(TURNS.replace("END", end).replace("assistant", role or "assistant"), encoding="utf-8")
    report = preflight(setup_of(f"model.chat_template={path}"), families=["tokens", "stops"])
    (said,) = [outcome for outcome in report.checks if outcome.status != "pass"]
    assert said.name == check
    assert words in said.message
