# `make train` and `make test` each set everything up from nothing: Python 3.11, git and make are all they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
NAME   ?= all

.PHONY: help browser setup train test test-fast test-old torture lint kernels bench docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.dev browser  ## create .venv with everything, development tools included

# Tests open pages in a browser; where none is found they are skipped, and say so.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable microsoft-edge; do \
	  command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing Chromium for the tests of pages" && \
	  { apt-get install --yes --no-install-recommends chromium > /dev/null || \
	    { apt-get update > /dev/null && apt-get install --yes --no-install-recommends chromium > /dev/null; } || true; }; \
	else echo "No Chromium found: tests of pages will be skipped. Debian: apt-get install chromium"; fi

train: $(VENV)/.run  ## train a policy in about twelve minutes, evaluate it, leave model, report and replay in runs/ (ARGS="seed=1 ...")
	$(BIN)/navrl train $(ARGS)

# For two cores: many tests wait for processes, servers and disks. tests/conftest.py says what runs together.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev  ## lint, types and every test, in three processes (ARGS="-k lidar"; ARGS="-n 0 --pdb" in one)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint kernels
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-fast: $(VENV)/.dev kernels  ## the tests that take milliseconds, without lint
	$(BIN)/python -m pytest $(PARALLEL) --numprocesses 2 -m "not slow" $(ARGS)

# Before the tests, while mypy runs: two test processes would each compile them.
kernels: $(VENV)/.dev
	$(BIN)/python tests/compile_kernels.py

# The oldest torch and NumPy that navrl.io is for, as in the Python of an older Isaac Sim.
OLD := .venv-old
test-old: $(OLD)/.made  ## the tests of files with torch 2.2 and NumPy 1.26, in an environment of their own (minutes)
	PYTHONPATH=src:tests $(OLD)/bin/python -m pytest -p no:cacheprovider -m "not slow" \
	  tests/io/test_state.py tests/io/test_saver.py tests/io/test_directory.py tests/io/test_alone.py $(ARGS)

$(OLD)/.made:
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/pip --disable-pip-version-check install --quiet 'torch==2.2.*' 'numpy==1.26.*' lz4 zstandard xxhash pytest hypothesis
	@touch $@

torture: $(VENV)/.dev  ## kills, full disks, power loss, clocks, damaged files, for hours; goes on where it stopped (ARGS="--kills 20 --only kill,disk")
	$(BIN)/python tests/torture.py $(ARGS)

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev  ## benchmarks beside their peers in under an hour, or one of them (NAME=simulator)
	$(BIN)/navrl bench $(NAME) $(ARGS)

docs: $(VENV)/.dev  ## build the documentation site into build/site
	$(BIN)/mkdocs build --strict $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(OLD) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing navrl into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[view]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing navrl and its development tools into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.run
