# make exp3 | test | lab | bench | growth | fit | clean.  Each makes .venv if it is missing; nothing is repeated that has not changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help exp3 test lab bench growth fit clean sync style types notebooks unit

help:            ## this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

# torch goes first and pinned: a plain `torch` on Linux brings several gigabytes of CUDA libraries.
$(READY): settings.ini setup.py pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "adaptmr needs Python 3.11 or newer, this is %s" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

exp3: $(READY)   ## the main comparison on the data set that ships inside, with its report
	$(BIN)/python -m adaptmr run exp3

test: sync notebooks unit style types  ## everything that must hold

sync: $(READY)
	$(BIN)/python tests/check_sync.py

notebooks: $(READY)
	$(BIN)/nbdev_test --n_workers 2 --do_print

unit: $(READY)
	$(BIN)/python -m pytest

style: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy adaptmr

lab: $(READY)    ## JupyterLab on the notebooks
	$(BIN)/jupyter lab nbs

bench: $(READY)  ## speed and size against the goals
	$(BIN)/python -m adaptmr run bench

growth: $(READY) ## ingest, queries, memory and disk from a thousand to a million memories
	$(BIN)/python -m adaptmr run growth

fit: $(READY)    ## refit the fusion's weights and its relevance (needs LoCoMo: README, Data)
	$(BIN)/python -m adaptmr fit

clean:           ## remove what can be made again (not outputs/)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis _proc _docs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
