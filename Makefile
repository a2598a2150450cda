# `make train` and `make test` do all of their own set-up on a fresh clone; a second call is quick.
#
#   make train ARGS="task=reach seed=1"   overrides, as `robot-rl train --help all` lists them
#   make test | test-all | lint | bench | clean
#                                         test-all: also the tests marked slow (they take minutes),
#                                         faults (they kill processes, fill disks) and browser
#   PYTHON=/path/to/python3.12            the interpreter of a new .venv
#   PIP_ARGS="--index-url URL"            further arguments of `pip install`

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
PIP_ARGS ?=
BENCHES ?= env loop replay

# Tests and training start many processes. Without its cache each would compile torch anew, for 3 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install system train test test-all lint bench clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -8

# The first interpreter that is 3.11 or 3.12 and can make virtual environments. A pyenv shim may be
# on the path and still fail, so each candidate is run, not only looked up. A .venv that no longer
# runs (moved checkout, removed interpreter) is made anew.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  chosen=""; \
	  for candidate in $(PYTHON) python3.12 python3.11 python3; do \
	    if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
	      >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	    echo "make: $$candidate is not a Python 3.11 or 3.12 with venv, trying the next"; \
	  done; \
	  if [ -z "$$chosen" ]; then \
	    echo "make: no Python 3.11 or 3.12 with the venv module was found." >&2; \
	    echo "      Install one (Debian: apt-get install python3.11-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "make: creating $(VENV) with $$("$$chosen" --version) ($$chosen)"; \
	  rm -rf $(VENV); "$$chosen" -m venv $(VENV); \
	fi
	@echo "make: installing robot_rl and its pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)

# MuJoCo renders video through EGL or OSMesa. Training on states needs neither, so nothing here may
# fail the job.
system: $(STAMP)
	@if [ "$$(uname)" = Linux ] && ! $(BIN)/python -c 'import ctypes.util, sys; sys.exit(not any(map(ctypes.util.find_library, ("EGL", "OSMesa"))))'; then \
	  command="apt-get install -y --no-install-recommends libegl1 libosmesa6"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && [ ! -e $(VENV)/.system-tried ] && touch $(VENV)/.system-tried \
	    && DEBIAN_FRONTEND=noninteractive timeout 120 sh -c "apt-get update && $$command" >/dev/null 2>&1; then \
	    echo "make: installed libegl1 and libosmesa6 for video"; \
	  else \
	    echo "make: no EGL or OSMesa library: going on without video. To have it, run as root: $$command"; \
	  fi; \
	fi

train: system
	@$(BIN)/robot-rl train $(ARGS)

# One thread: a test shares the machine with the processes that it starts. The number of workers is in
# tests/conftest.py; the tests of a file stay together, for some share a run that takes seconds to
# make. A worker that dies ends all of them: where one is replaced, the rest may wait for ever
# (pytest-xdist issue 1378). Both say at their end what they have left out, and why.
test: MARKS := not slow and not faults and not browser
test test-all: export OMP_NUM_THREADS := 1
test test-all: system lint
	@$(BIN)/python -m pytest -q -n auto --dist loadfile --max-worker-restart 0 --no-loadscope-reorder --durations 12 -m "$(MARKS)"

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy examples/*/*.py

bench: system
	@for name in $(BENCHES); do echo "== bench $$name"; $(BIN)/robot-rl bench $$name $(ARGS); done

# Runs are data: they stay.
clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
