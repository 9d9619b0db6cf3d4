# Needs python3.11 (or newer), git and a C++ compiler. `make help` lists the targets.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    ?= .venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.protoflows-setup

# Test processes side by side; 0 runs all in one. ARGS goes to pytest or to the benchmark.
WORKERS ?= 2
ARGS    ?=
PYTEST  := $(PY) -m pytest -n $(WORKERS) --dist loadfile
BENCHMARK ?= benchmarks/flow.py

.DEFAULT_GOAL := help
.PHONY: help setup test test-all lint types format demo benchmark docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install the package with its development tools
	@echo "$(VENV) is ready."

# Both files are written at the very end of their step, so an interrupted set-up is repeated.
$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "No python3.11 or python3 found: set PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/pip
	$(PY) -m pip install --disable-pip-version-check --editable '.[app,docs,dev]'
	@touch $@

# One thread per process unless told otherwise: the tests' tensors are small.
test test-all: export OMP_NUM_THREADS ?= 1

test: $(STAMP) ## Run the tests (ARGS="-k actnorm" for some), set-up included
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP) ## Run the tests, the slow ones too
	$(PYTEST) $(ARGS)

lint: $(STAMP) ## Check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP) ## Check types
	$(PY) -m mypy

format: $(STAMP) ## Format, and mend what can be mended
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: $(STAMP) ## Train on scikit-learn's digits, evaluate, and say where the results are
	$(PY) -m protoflows train --out runs/demo --overwrite $(ARGS)

benchmark: $(STAMP) ## Measure speed, memory and exactness (ARGS for the script)
	$(PY) $(BENCHMARK) $(ARGS)

docs: $(STAMP) ## Build the documentation into docs/_build/html
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

clean: ## Remove caches and builds; .venv and runs/ stay
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks docs -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
