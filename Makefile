# The two commands of the README: `make demo` and `make test`.  Both create .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test suite lint docs site bench fuzz clean

demo: .venv/.train
	$(BIN)/levelhead demo

test: lint suite

suite: .venv/.dev
	bash tests/system_packages.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.train: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]'
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ .venv/.train

docs: .venv/.dev
	$(BIN)/python -m levelhead.recipe > docs/recipe.schema.json
	$(BIN)/python -m levelhead.recipe --page > docs/recipe.md
	$(BIN)/python -m levelhead.metrics > docs/metrics.md
	$(BIN)/python -m levelhead.diagnosis.pages docs/findings
	$(BIN)/python -m levelhead.cli.page > docs/cli.md

# The documentation as a site, in an environment of its own: build/site/index.html.
site:
	$(PYTHON) -m venv build/site-tools
	build/site-tools/bin/python -m pip install --quiet --disable-pip-version-check '.[docs]'
	build/site-tools/bin/zensical build --clean --strict

# For a night: what reads files of unknown origin, on a hundred thousand hostile ones; and the tests that are shorter by day
# or left out: as many forged verdicts, all pairs of settings, the tutorial's figures.
fuzz: .venv/.dev
	LEVELHEAD_NIGHT=1 $(BIN)/python -m pytest -m night
	$(BIN)/python bench/fuzz.py --count 100000 --seed "$$(date +%j)"

# LEVELHEAD_BENCH_TRL names the Python of an environment that holds trl and peft; without it ours is measured alone.
bench: .venv/.dev
	$(BIN)/python bench/speed.py --out bench/results/speed.json

clean:
	rm -rf .venv build dist
