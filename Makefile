# Every target makes its own environment first; nothing else is needed than Python 3.11 or newer and pip.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what is imported; all that is installed takes a minute longer.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-compile
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
# Thousands of processes import the same modules: where Python may not keep what it compiled, each takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
PRESET ?= smoke
OUT ?= gpu-out

.PHONY: help run test test-all test-exhaustive test-lowest test-newest check bench gpu docs clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

run: $(VENV)/.stamp-run ## Train with AdaQP on four ranks and report what it gained
	@$(BIN)/wirewise run adaqp

# Tests that stay in one process come first; the others start ranks, of which those of two tests run at a time, as they
# wait for each other more than they compute. With one hash seed all workers list the cases of a test in the same order.
# $(1): the markers of tests that are left out.
PROCESSES := dist or lab or slurm or browser
# The longest files start first: one that starts last keeps a worker waiting.
WITH_PROCESSES = $(shell grep -rlE 'mark\.(dist|lab|slurm|browser)\b' tests/examples tests/papers tests --include='test_*.py')
PYTEST = PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
define run_tests
$(PYTEST) -m "not ($(1) or $(PROCESSES))"; alone=$$?; \
$(PYTEST) -m "($(PROCESSES)) and not ($(1))" $(WITH_PROCESSES) && exit $$alone
endef

# Kernels are compiled once and kept; two processes that test at the same time would each compile their own.
define warm_kernels
$(BIN)/wirewise doctor --warm
endef

test: $(VENV)/.stamp-dev ## Run the tests of every part, in minutes
	@$(call run_tests,gpu or slow)

test-all: $(VENV)/.stamp-triton $(VENV)/.stamp-vision ## Run all tests but those that need a GPU: whole experiments, benchmark scripts, browsers too
	-@$(call warm_kernels)
	@$(call run_tests,gpu)

test-exhaustive: export WIREWISE_EXHAUSTIVE = 1
test-exhaustive: test-all ## The same with all cases of the longest sweeps, of which test-all takes a sample, in hours

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

gpu: ## Show on one GPU what can be shown there, in four minutes: make gpu PYTHON=python3 OUT=FOLDER
	@$(PYTHON) benchmarks/one_gpu.py --out "$(OUT)"

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
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(INSTALL) "$(TORCH)"
	@touch $@

$(VENV)/.stamp-run: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@$(INSTALL) -c constraints.txt -e ".[gnn]"
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@$(INSTALL) -c constraints.txt -e ".[dev,docs]"
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-triton: $(VENV)/.stamp-dev
	@$(INSTALL) -c constraints.txt -e ".[triton]"
	@touch $@

# Models of torchvision and timm, in a folder of their own that tests look into: beside a torch for CPUs, a torchvision
# that was built for GPUs keeps lightning from loading.
$(VENV)/.stamp-vision: $(VENV)/.stamp-dev
	@$(INSTALL) -c constraints.txt --no-deps --upgrade --target $(VENV)/vision timm torchvision pillow
	@touch $@
