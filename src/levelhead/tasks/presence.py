"""Whether the files that a recipe names are there, asked before anything that takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from levelhead.errors import InputError
from levelhead.recipe import Recipe
from levelhead.recipe.tasks import CustomTask, Function
from levelhead.tasks import files
from levelhead.usercode import NO_FILE

_TABLES = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".pq")
_MODEL = ("config.json", "adapter_config.json")
_LOCAL = ("/", "./", "../", "~")


def require_files(recipe: Recipe, checkpoint: str | Path | None = None, *, model: bool = True) -> None:
    """Look for data, reward files, chat template, and a model or checkpoint that is named by its path.

    Args:
        recipe: Whose paths are looked at.
        checkpoint: Folder of a checkpoint that is to be read too.
        model: Whether the recipe's model and tokenizer are used.

    Raises:
        InputError: One of them is not there.
    """
    if checkpoint is not None and not Path(checkpoint).expanduser().is_dir():
        raise InputError(f"{checkpoint}: no such folder; give the folder of a checkpoint")
    if checkpoint is not None and not any((Path(checkpoint).expanduser() / name).is_file() for name in _MODEL):
        raise InputError(f"{checkpoint}: no model here (neither {' nor '.join(_MODEL)})")
    for section in recipe.tasks:
        named_path = None if isinstance(section, CustomTask) else getattr(section, "path", None)
        for path in [named_path] if isinstance(named_path, str) else named_path or []:
            table = Path(path).suffix.lower() in _TABLES
            if (table or not isinstance(section, Function)) and not Path(path).expanduser().exists():
                raise files.missing_data(path, files.NO_FILE if table else files.NEITHER)
        key, entries = "tasks[].rewards", section.rewards if isinstance(section, Function) else []
        if isinstance(section, CustomTask):
            key, entries = "tasks[].path", [section.path or ""]
        for entry in entries:
            file = entry.rpartition(":")[0]
            if file and not Path(file).expanduser().is_file():
                raise InputError(NO_FILE(file=file, key=key, folder=Path.cwd()))
    if not model:
        return
    template = recipe.model.chat_template
    if template is not None and not Path(template).is_file():
        raise InputError(f"model.chat_template: cannot read {template}: no such file (seen from {Path.cwd()})")
    for key, named in (("name", recipe.model.name), ("tokenizer", recipe.model.tokenizer)):
        if named is not None and named.startswith(_LOCAL) and not Path(named).expanduser().exists():
            raise InputError(f"model.{key}: {named}: no such folder (seen from {Path.cwd()})")
