# Every target makes its own environment first; nothing else is needed than Python 3.11 or newer and pip.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PRESET ?= smoke

.PHONY: help run test test-all test-lowest test-newest check bench docs clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

run: $(VENV)/.stamp-run ## Train with AdaQP on four ranks and report what it gained
	@$(BIN)/wirewise run adaqp

# Tests that stay in one process come first; the others start ranks, of which those of two tests run at a time, as they
# wait for each other more than they compute. With one hash seed all workers list the cases of a test in the same order.
# $(1): the markers of tests that are left out.
PROCESSES := dist or lab or slurm or browser
WITH_PROCESSES = $(shell grep -rlE 'mark\.(dist|lab|slurm|browser)\b' tests --include='test_*.py')
PYTEST = PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
define run_tests
$(PYTEST) -m "not ($(1) or $(PROCESSES))"; alone=$$?; \
$(PYTEST) -m "($(PROCESSES)) and not ($(1))" $(WITH_PROCESSES) && exit $$alone
endef

test: $(VENV)/.stamp-dev ## Run the tests of every part, in minutes
	@$(call run_tests,gpu or slow)

test-all: $(VENV)/.stamp-triton ## Run all tests but those that need a GPU: whole recipes, benchmark scripts, browsers too
	@$(call run_tests,gpu)

# Other versions than those of constraints.txt, each in an environment of its own, as are kernels that its numba compiles;
# uv knows which are the oldest.
UV := .venv-uv/bin/uv
define test_with
@test -x $(UV) || { $(PYTHON) -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet uv; }
@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(dir $(BIN))
@$(UV) pip install --quiet --python $(BIN)/python --resolution $(1) -e ".[dev,docs]"
@export NUMBA_CACHE_DIR=$(CURDIR)/$(dir $(BIN))numba; $(call run_tests,gpu or slow)
endef

test-lowest: BIN := .venv-lowest/bin
test-lowest: ## Run the fast tests with the oldest versions that pyproject.toml promises, in .venv-lowest
	$(call test_with,lowest-direct)

test-newest: BIN := .venv-newest/bin
test-newest: ## Run the fast tests with the newest versions that there are, in .venv-newest
	$(call test_with,highest --upgrade)

check: $(VENV)/.stamp-dev ## Lint, format, types, import contracts, docs
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }
	@if [ -f docs/conf.py ]; then $(BIN)/python -m sphinx -W --keep-going -q docs docs/_build; fi

bench: $(VENV)/.stamp-triton ## Run every benchmark; PRESET=paper for the long form, which fails if a threshold is missed
	@failed=; for script in benchmarks/*/run.py; do \
		echo "== $$script"; $(BIN)/python $$script --preset $(PRESET) || failed="$$failed $$script"; done; \
	[ -z "$$failed" ] || { echo "failed or missed a threshold:$$failed" >&2; exit 1; }

docs: $(VENV)/.stamp-dev ## Build the documentation into docs/_build
	@$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"

clean: ## Remove the environment and everything built
	@rm -rf $(VENV) .venv-uv .venv-lowest .venv-newest dist docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "make: no environment could be made; install Python's venv module (on Debian: python3-venv)" >&2; exit 1; }

# PyTorch comes first and only where it is missing, so that a build that suits the machine's GPU is kept.
$(VENV)/.stamp-torch: | $(BIN)/python
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install "$(TORCH)"
	@touch $@

$(VENV)/.stamp-run: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@$(PIP) install -c constraints.txt -e ".[dev,docs]"
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-triton: $(VENV)/.stamp-dev
	@$(PIP) install -c constraints.txt -e ".[triton]"
	@touch $@
