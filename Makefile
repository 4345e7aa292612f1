# Everything runs in .venv, which `make` creates on first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test fast lint format

demo: $(INSTALLED)
	$(BIN)/harness search --loss ccp proxyanchor --trials 2 --runs-dir runs/demo
	$(BIN)/harness eval --reproductions 2 --runs-dir runs/demo --results-dir runs/demo/results
	$(BIN)/harness report --pictures --runs-dir runs/demo --results-dir runs/demo/results --output runs/demo/report.html

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist loadfile

fast: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev,pretrained]"
	touch $@
