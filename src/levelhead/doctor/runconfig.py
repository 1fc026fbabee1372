"""The settings of a run, read from the script or configuration beside its log: as data, and never executed.

Python is parsed and not run: keyword arguments of calls, assignments, dictionaries and ``add_argument`` defaults are
looked at, names of constants and arithmetic among numbers followed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead.documents import DocumentError, load_json, read_text
from levelhead.errors import InputError, first_line

GROUP_SIZE, LEARNING_RATE, KL_COEF = "group_size", "learning_rate", "kl_coef"
MAX_LENGTH, TEMPERATURE, LORA = "max_completion_length", "temperature", "lora"

_KEYS: dict[str, str] = {
    GROUP_SIZE: "num_generations num_generations_per_prompt rollout.n n_samples_per_prompt samples_per_prompt "
    "num_return_sequences num_return_sequences_in_group num_samples group_size n_rollouts rollout.num_generations "
    "k_rollouts generations_per_prompt completions_per_prompt rollouts_per_example "
    "rollouts_per_prompt num_samples_per_prompt num_rollouts_per_prompt n_rollouts_per_prompt sampling.n n",
    LEARNING_RATE: "learning_rate optim.lr actor_learning_rate actor_lr lr optimizer.lr",
    KL_COEF: "beta kl_loss_coef init_kl_coef kl_coef kl_beta reference_policy_kl_penalty "
    "kl_ctrl.kl_coef kl_penalty_coef "
    "kl.beta",
    MAX_LENGTH: "max_completion_length max_response_length generate_max_len max_new_tokens max_completion_tokens "
    "sampling.max_tokens max_gen_len rollout_max_response_len response_length",
    TEMPERATURE: "temperature rollout.temperature sampling.temperature rollout_temperature",
    LORA: "lora_r lora_rank lora.rank use_peft lora.r use_lora r",
}
_CANONICAL = {key: name for name, keys in _KEYS.items() for key in keys.split()}
_RANKS = {key: rank for keys in _KEYS.values() for rank, key in enumerate(keys.split())}
_ELSEWHERE = re.compile(
    r"(?:^|[._/])(?:critic|value|val|val_kwargs|eval|evaluation|validation|sft|reward_model|judge|operators?)(?:[._]|$)"
)
_PEFT = re.compile(r"^(?:Lora|Peft)\w*(?:Config|Arguments)$")
_OVERRIDE = re.compile(
    r"(?:^|\s)(?:--|\+{1,2})?([A-Za-z_][\w.-]{0,120})(?:=|\s{1,4})(['\"]?[-+\w.]{1,40}['\"]?)(?=[\s\\]|$)", re.M
)
_MAX_FILE = 4 << 20
_MAX_DEPTH = 12
_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a script or configuration says about a run.

    Attributes:
        values: Setting to number, under canonical names.
        keys: The key that each was read from.
        source: The file.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    source: str = ""


def read_settings(path: Path) -> RunSettings:
    """Read the settings of a run from a script (``.py``, ``.sh``) or configuration (YAML, JSON, TOML).

    Raises:
        InputError: It cannot be read, is not what its name says, or names none of the settings that are looked for.
    """
    try:
        text = read_text(path, most=_MAX_FILE)
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror or error})") from None
    values: dict[str, float] = {}
    keys: dict[str, str] = {}
    best: dict[str, int] = {}
    for key, value in _pairs(path, text):
        name, rank = _setting(key)
        number = _number(value)
        if name and number is not None and rank < best.get(name, 1000):
            values[name], keys[name], best[name] = number, key, rank
    if values.get(LORA, 1.0) == 0.0:
        del values[LORA], keys[LORA]
    if not values:
        looked = "group size, learning rate, beta, completion length, temperature"
        raise InputError(f"--config {path}: names none of the settings that are looked for ({looked})")
    return RunSettings(values, keys, str(path))


def _setting(key: str) -> tuple[str, int]:
    """The setting that a dotted key names, and how much the key is trusted (lower is more)."""
    lowered = key.lower().replace("-", "_").replace("/", ".")
    if _ELSEWHERE.search(lowered):
        return "", 0
    parts = lowered.split(".")
    for tail in (".".join(parts[-2:]), parts[-1]):
        if (name := _CANONICAL.get(tail)) and not (tail == "r" and "lora" not in lowered):
            return name, _RANKS[tail] + (0 if tail == ".".join(parts[-2:]) else 1)
    return "", 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e12 else None
    if isinstance(value, str):
        try:
            return float(value.strip("'\" ").replace("_", ""))
        except ValueError:
            return {"true": 1.0, "false": 0.0}.get(value.lower())
    return None


def _pairs(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    suffix = path.suffix.lower()
    try:
        if suffix == ".py":
            yield from _python(text)
        elif suffix in (".yaml", ".yml"):
            # Imported here: the doctor starts without a parser of YAML.
            from levelhead.documents.yaml_text import load_yaml

            yield from _flat(load_yaml(text))
        elif suffix == ".json":
            yield from _flat(load_json(text))
        elif suffix == ".toml":
            import tomllib

            yield from _flat(tomllib.loads(text))
        else:
            yield from _OVERRIDE.findall(text)
    except DocumentError as error:
        where = f":{error.line}" if error.line else ""
        raise InputError(f"--config {path}{where}: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"--config {path}: cannot be read as {suffix[1:]} ({first_line(error)[:100]})") from None


def _flat(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for key, item in value.items():
            # Exported configurations hold their values one level down.
            inner = str(key) if key != "value" else ""
            yield from _flat(item, ".".join(part for part in (prefix, inner) if part), depth + 1)
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            if isinstance(item, Mapping):
                yield from _flat(item, prefix, depth + 1)
            elif isinstance(item, str) and (match := _OVERRIDE.fullmatch(item)):
                yield match.group(1), match.group(2)
    else:
        yield prefix, value


def _python(text: str) -> Iterator[tuple[str, Any]]:
    tree = ast.parse(text)
    constants: dict[str, Any] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = _value(node.value, constants)
            for target in targets:
                if isinstance(target, ast.Name) and value is not None:
                    constants.setdefault(target.id, value)
                if value is not None and isinstance(target, (ast.Name, ast.Attribute)):
                    yield (target.id if isinstance(target, ast.Name) else target.attr), value
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from _call(node, constants)
        elif isinstance(node, ast.Dict):
            for key, item in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, _value(item, constants)


def _call(node: ast.Call, constants: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "add_argument" and node.args and isinstance(node.args[0], ast.Constant):
        defaults = [_value(k.value, constants) for k in node.keywords if k.arg == "default"]
        yield str(node.args[0].value).lstrip("-"), defaults[0] if defaults else None
        return
    prefix = "lora." if _PEFT.match(name) else ""
    for keyword in node.keywords:
        if keyword.arg:
            yield prefix + keyword.arg, _value(keyword.value, constants)


def _value(node: ast.expr, constants: Mapping[str, Any], depth: int = 0) -> Any:
    """The constant that an expression is, by its syntax alone; ``None`` where it is none."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, constants, depth + 1)
        return -value if isinstance(value, (int, float)) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = (_value(side, constants, depth + 1) for side in (node.left, node.right))
        if isinstance(left, (int, float)) and isinstance(right, (int, float)) and max(abs(left), abs(right)) < 1e12:
            try:
                return _OPERATIONS[type(node.op)](left, right)
            except ZeroDivisionError:
                return None
    return None
