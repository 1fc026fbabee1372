"""Scripts of TRL's documentation and examples, moved by their import and run to their end on small models.

Usage, with a Python that has trl, datasets, math_verify and trackio, and a checkout of TRL:
``PYTHONPATH=src python bench/trl_scripts.py CHECKOUT --data gsm8k.jsonl --out FILE [--trl] [--only NAME ...]``.

What is stood in for, before the lines are counted: models of the hub by two narrow layers of the same family with
random weights, data sets by rows of GSM8K under the columns of theirs, pushes and GPU figures by nothing, 500 steps
by 20.  Everything else of a script stays.  ``--trl`` runs the scripts as they are, in TRL.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODEL = "small-model"
ENDS = 0.05
"""How likely the small model's next token is the stop token."""

FLAGS = (
    f"--model_name_or_path {MODEL} --per_device_train_batch_size 8 --num_generations 8 --max_completion_length 64 "
    "--logging_steps 1 --report_to none --bf16 false --use_cpu"
)


@dataclass(frozen=True, slots=True)
class Script:
    """One script: where it stands in TRL's repository, and how it is called.

    Attributes:
        file: Path in the repository.
        block: Number of the Python block that calls the trainer, for a page; ``None`` for a whole file.
        flags: Its command line.
        before: What a page's block takes for granted.
        rest: What stands for ``...`` in a page's call, and behind it.
        holds: What marks the page's block.
        template: Chat template of TRL's that the model has; base-tiny's own shows no tools.
        server: Whether an engine that speaks vLLM's routes stands at TRL's address, 127.0.0.1:8000.
    """

    file: str
    block: int | None = None
    flags: str = ""
    before: str = ""
    rest: tuple[str, str] = ("", "")
    holds: str = ".train()"
    template: str = ""
    server: bool = False


_CHECKS = (
    "def check_math_solution(prompt, completion): return '4' in completion\n"
    "def test_code_solution(prompt, completion): return 'return' in completion\n"
)
_PEFT = (
    "from datasets import load_dataset\nfrom trl.rewards import accuracy_reward\n"
    "dataset = load_dataset('trl-lib/DeepMath-103K', split='train')\n"
)
SCRIPTS = {
    "readme": Script("README.md", 0),
    "quickstart": Script("docs/source/quickstart.md", 0),
    "grpo-page": Script("docs/source/grpo_trainer.md", 0),
    "grpo-page-vllm-server": Script("docs/source/grpo_trainer.md", 1),
    "vllm-page-server": Script("docs/source/vllm_integration.md", 0, server=True),
    "grpo-page-several-rewards": Script("docs/source/grpo_trainer.md", 2, before=_CHECKS),
    "lora-without-regret": Script("docs/source/lora_without_regret.md", 0),
    "peft-page": Script("docs/source/peft_integration.md", 0, before=_PEFT),
    "notebook-qlora": Script("examples/notebooks/grpo_trl_lora_qlora.ipynb"),
    "notebook-rnj": Script("examples/notebooks/grpo_rnj_1_instruct.ipynb"),
    "gspo": Script(
        "examples/scripts/gspo.py",
        flags=f"{FLAGS} --output_dir gspo --learning_rate 1e-5 --use_peft --lora_target_modules q_proj v_proj "
        "--log_completions --importance_sampling_level sequence --epsilon 3e-4 --epsilon_high 4e-4 --beta 0.0 "
        "--loss_type grpo --gradient_accumulation_steps 2 --steps_per_generation 8",
    ),
    "continuous-batching": Script(
        "examples/scripts/grpo_continuous_batching.py", flags=f"{FLAGS} --output_dir cb --use_peft --log_completions"
    ),
    "trl-grpo": Script(
        "trl/scripts/grpo.py",
        flags=f"{FLAGS} --output_dir tg --dataset_name trl-lib/DeepMath-103K --reward_funcs accuracy_reward",
    ),
    "grpo-2048": Script("examples/scripts/grpo_2048.py"),
    "trl-grpo-peft-eval-push": Script(
        "trl/scripts/grpo.py",
        flags=f"{FLAGS} --output_dir tp --dataset_name trl-lib/DeepMath-103K --reward_funcs accuracy_reward "
        "--use_peft --lora_target_modules q_proj v_proj --eval_strategy steps --eval_steps 4 --push_to_hub",
    ),
    "async-callbacks-resume": Script(str(ROOT / "bench/trllib/async_callbacks_resume.py")),
    "grpo-page-tools": Script(
        "docs/source/grpo_trainer.md",
        0,
        before=_PEFT,
        rest=(
            (
                f"    model={MODEL!r},\n    train_dataset=dataset,\n"
                "    reward_funcs=lambda completions, **_: [*map(len, completions)],\n"
            ),
            "trainer.train()\n",
        ),
        holds="tools=[multiply",
        template="qwen2_5",
    ),
    "grpo-agent": Script("examples/scripts/grpo_agent.py", flags=f"{FLAGS} --output_dir agent", template="qwen2_5"),
    "grpo-vlm": Script(
        "examples/scripts/grpo_vlm.py", flags=f"{FLAGS} --output_dir vlm --learning_rate 1e-5 --use_peft"
    ),
}

PRELUDE = """
import json, os, sys
import datasets
def _picture():
    from PIL import Image
    return Image.new("RGB", (64, 64))
def _rows(name, test=False):
    count = 200 if "multimodal" in name else int(os.environ["ROWS"])  # that script holds 100 rows out
    texts = [json.loads(line) for line in open(os.environ["ROWS_FILE"])][count * test:][:count]
    for one in texts:
        q, a = one["question"], one["answer"]
        last = a.split("####")[-1].strip()
        if "biogrid" in name: yield {"question": f"Does the gene {q}", "answer": last, "A": 1}
        elif "gsm8k" in name: yield {"question": q, "answer": a}
        elif "multimodal" in name: yield {"problem": q, "solution": last, "image": _picture()}
        elif "NuminaMath" in name: yield {"problem": q, "solution": last, "messages": [{"role": "user", "content": q}]}
        else: yield {"prompt": [{"role": "user", "content": q}], "solution": last}
def _load(path, *_, split=None, **__):
    train, test = (datasets.Dataset.from_list(list(_rows(path, part))) for part in (False, True))
    if isinstance(split, list): return [test if one.startswith("test") else train for one in split]
    if split: return test if split.startswith("test") else train
    return datasets.DatasetDict({"train": train, "test": test})
datasets.load_dataset = _load
import huggingface_hub
class _Hub:
    def __init__(self, **_): pass
    def create_repo(self, name, **_): return type("Repo", (), {"repo_id": f"me/{name}"})
    def upload_folder(self, *, folder_path, **_): print("pushed:", *sorted(os.listdir(folder_path)))
    def __getattr__(self, name): return lambda *_, **__: None
huggingface_hub.HfApi = _Hub
"""
SERVER = f"""
from pathlib import Path
sys.path.append({str(ROOT / "tests")!r})
from fake_engine import FakeEngine
engine = FakeEngine(Path({MODEL!r}))
engine.url = "http://127.0.0.1:8000"
engine.come_back()
"""


def code_of(script: Script, checkout: Path) -> str:
    """The script's text with models, pushes and GPU figures stood in for."""
    text = (checkout / script.file).read_text()
    if script.file.endswith(".ipynb"):
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        last = next(i for i, cell in enumerate(cells) if "trainer.save_model" in cell)
        wanted = [c for c in cells[: last + 1] if not c.startswith("!") and "_login" not in c and "cuda" not in c]
        text = "\n".join(wanted)
        text = text.replace("push_to_hub=True", "push_to_hub=False").replace("max_steps=500", "max_steps=20")
        text = re.sub(r"^trainer\.push_to_hub.*$|^ *trackio_space_id.*$", "", text, flags=re.MULTILINE)
        text = text.replace('device_map="auto"', 'device_map="cpu"')
    elif script.block is not None:
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        text = [block for block in blocks if "GRPOTrainer(" in block and script.holds in block][script.block]
        text = re.sub(r"^    \.\.\.,?\n", script.rest[0], text, flags=re.MULTILINE) + script.rest[1]
        if "reward_funcs" not in text:
            text = text.replace("    args=training_args,", "    args=training_args,\n    reward_funcs=accuracy_reward,")
    text = re.sub(r'"(Qwen|EssentialAI)/[\w.\-]+"', f'"{MODEL}"', text)
    return script.before + text


def moved(text: str) -> str:
    """The script with Levelhead's names: the one change that a user makes."""
    names = ["GRPOTrainer"] if "TrlParser" in text else ["GRPOConfig", "GRPOTrainer"]
    lines = []
    for line in text.split("\n"):
        match = re.fullmatch(r"(\s*)from trl import (.+)", line)
        if not match or match[2] == "(":
            lines.append(line)
            continue
        asked = [name.strip() for name in match[2].split(",")]
        ours = [name for name in asked if name in names]
        rest = [name for name in asked if name not in names]
        lines += [f"{match[1]}from trl import {', '.join(rest)}"] if rest else []
        lines += [f"{match[1]}from levelhead.trl import {', '.join(ours)}"] if ours else []
    text = "\n".join(lines)
    if re.search(r"^    GRPOTrainer,\n", text, re.MULTILINE):  # a list of names over several lines
        text = re.sub(r"^    GRPOTrainer,\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(from trl\.rewards)", r"from levelhead.trl import GRPOTrainer\n\1", text, count=1, flags=re.M)
    return text


def changed(before: str, after: str) -> int:
    """Lines that a user edits, adds or takes out."""
    matcher = difflib.SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal")


def make_model(folder: Path, template: Path | None) -> None:
    """Two narrow layers of Qwen2 with random weights that end an answer after some 20 tokens; base-tiny's tokenizer.

    A bias of the values gives every hidden state a common direction, and the stop token's row of the head lies in it.
    """
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "src/levelhead/models/base-tiny")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.bias.normal_(std=3.0)
        hidden = model.model(torch.randint(0, len(tokenizer), (8, 64))).last_hidden_state.flatten(0, 1)
        common = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        low, high = 0.0, 50.0
        for _ in range(40):
            middle = (low + high) / 2
            model.lm_head.weight[tokenizer.eos_token_id] = middle * common
            share = model.lm_head(hidden).softmax(-1)[:, tokenizer.eos_token_id].mean()
            low, high = (middle, high) if share < ENDS else (low, middle)
    model.save_pretrained(folder)
    if template is not None:
        tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(folder)


def play(name: str, checkout: Path, data: Path, rows: int, *, trl: bool) -> dict[str, Any]:
    """Run one script; returns lines changed, seconds, and what was said."""
    script = SCRIPTS[name]
    before = code_of(script, checkout)
    after = before if trl else moved(before)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        template = checkout / f"trl/chat_templates/{script.template}.jinja" if script.template else None
        make_model(folder / MODEL, template)
        (folder / "script.py").write_text(PRELUDE + SERVER * script.server + after)
        environment = {
            **os.environ, "ROWS_FILE": str(data.resolve()), "ROWS": str(rows), "HF_HUB_OFFLINE": "1",
            "TRACKIO_DIR": str(folder / "trackio"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "script.py", *script.flags.split()],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        runs = sorted(folder.rglob("metrics.jsonl"))
        logged = [json.loads(line) for line in runs[0].read_text().splitlines()] if runs else []
    mark = "levelhead.trl: no effect here (docs/from-trl.md says why): "
    idle = [line.removeprefix(mark) for line in done.stderr.splitlines() if line.startswith(mark)]
    steps = sum(row.get("stage") == "grpo" for row in logged)
    said = (done.stderr.strip().splitlines() or [""])[-1][:300] if done.returncode else ""
    return {
        "script": name, "lines": changed(before, after), "exit": done.returncode, "seconds": round(seconds, 1),
        "steps": steps, "no_effect": idle, "said": said, "stderr": done.stderr[-3000:] if done.returncode else "",
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the scripts and write one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS), metavar="NAME")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10, help="rows of each data set")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trl", action="store_true")
    options = parser.parse_args(arguments)
    results = []
    for name in options.only:
        result = play(name, options.checkout, options.data, options.rows, trl=options.trl)
        print(json.dumps({key: value for key, value in result.items() if key != "stderr"}), flush=True)
        if result["stderr"]:
            print(result["stderr"], file=sys.stderr, flush=True)
        results.append({key: value for key, value in result.items() if key != "stderr"})
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
