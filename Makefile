.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
HTA := .venv-hta/bin/python
# Tests against HolisticTraceAnalysis run where `make hta` made its environment, else are skipped.
export MESHSCOPE_HTA_PYTHON ?= $(wildcard $(CURDIR)/$(HTA))

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -U pip

setup: $(BIN)/python  ## Install meshscope and everything the tests need into .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,pandas]'

hta: $(HTA)  ## Install HolisticTraceAnalysis into .venv-hta, for the tests that compare with it

$(HTA):
	$(PYTHON) -m venv .venv-hta
	.venv-hta/bin/python -m pip install -q -U pip
	.venv-hta/bin/python -m pip install -q -c constraints.txt '.[hta]' pytest

test: setup  ## Run lint, types and all tests but the slow ones (what CI runs)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(wildcard $(HTA)),$(HTA) -m pytest -q tests/unit/test_interop_hta.py)
	$(BIN)/python -m pytest -n auto -m 'not slow'

test-all: setup  ## Run every test, the slow ones too
	$(BIN)/python -m pytest

lint: setup  ## Lint, format check, types, layering
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: setup  ## Regenerate the generated documentation pages
	$(BIN)/python tests/tools/docs.py

golden: setup  ## Rewrite the golden files after an intended change
	$(BIN)/python tests/tools/corpus_table.py --write

bench: setup  ## Print the benchmark table (ratios in one run)
	$(BIN)/python benchmarks/run.py $(if $(MESHSCOPE_HTA_PYTHON),--hta-python $(MESHSCOPE_HTA_PYTHON))

.PHONY: help setup hta test test-all lint format docs golden bench
