# Everything runs in .venv, which `make` creates on first use.
PYTHON ?= python3
BIN := .venv/bin
LOCK := requirements/lock.txt
# LOCKED=1 installs exactly the versions that the committed tables were made with.
INSTALLED := .venv/installed$(if $(LOCKED),-locked)
LOWEST := .venv-lowest
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .venv-uv/bin/uv)

.PHONY: demo test fast test-lowest faults fuzz tables papers figures docs lint format audit

demo: $(INSTALLED)
	$(BIN)/harness search --loss ccp proxyanchor --trials 2 --runs-dir runs/demo
	$(BIN)/harness eval --reproductions 2 --runs-dir runs/demo --results-dir runs/demo/results
	$(BIN)/harness report --pictures --runs-dir runs/demo --results-dir runs/demo/results --output runs/demo/report.html

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist worksteal

fast: $(INSTALLED)
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow"

# The fast tests with the oldest packages that setup.cfg allows.
test-lowest: $(LOWEST)/installed
	$(LOWEST)/bin/python -m pytest -q -n auto --dist worksteal -m "not slow"

# Every call of the system fails once, and a thousand kills; `make test` takes a sample of both.
faults: $(INSTALLED)
	HARNESS_FAULTS=every HARNESS_KILL_ROUNDS=84 $(BIN)/python -m pytest -q -n auto --dist load \
		tests/faults tests/end_to_end/test_kill.py

# So many damaged files and command lines, other ones every time; `make test` has 2,500 fixed ones.
N ?= 100000
fuzz: $(INSTALLED)
	HARNESS_FUZZ=$(N) $(BIN)/python -m pytest -q -n auto --dist load tests/fuzz

# Write the committed tables and the verdict again, from the records alone.
tables: $(INSTALLED)
	$(BIN)/harness leaderboard --results-dir results --against none
	$(BIN)/harness verdict --results-dir results --against none --output results/VERDICT.md

# Write docs/papers.md again, from what the papers state in protocols/papers.
papers: $(INSTALLED)
	$(BIN)/python docs/papers_page.py

# Every figure of the papers, on glyphs and with few steps.
figures: $(INSTALLED)
	for figure in protocols/figures/*.yaml; do \
		$(BIN)/harness sweep --figure "$$(basename "$$figure" .yaml)" --quick \
			--runs-dir runs/figures --results-dir runs/figures/results || exit; \
	done

# The documentation site, in site/; it can be opened from disk.
docs: $(INSTALLED)
	$(BIN)/python -m mkdocs build --strict

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/check_words.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Known vulnerabilities of what is installed; asks the network, so neither `test` nor `lint` does.
audit: $(INSTALLED)
	$(BIN)/python -m pip_audit --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip_audit --local --skip-editable

$(INSTALLED): setup.cfg pyproject.toml $(LOCK)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev,pretrained]" $(if $(LOCKED),--constraint $(LOCK))
	rm -f .venv/installed*
	touch $@

# Wheels of the oldest packages exist for Python 3.11.
$(LOWEST)/installed: setup.cfg pyproject.toml | $(UV)
	$(UV) venv --quiet --clear --seed --python 3.11 $(LOWEST)
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--editable ".[dev,pretrained]"
	touch $@

.venv-uv/bin/uv:
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/python -m pip install --quiet uv

# The system's, if it has one.
.PHONY: uv
uv:
