# Everything here works from a fresh clone on a machine with Python >= 3.11, make and git:
# each command makes the environment it needs in .venv, once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LIGHT  := $(VENV)/.ready-demo
OUT    ?= regmax-demo
BENCH  ?= build/bench
MINUTES ?= 10

.DEFAULT_GOAL := help
.PHONY: help install demo test slow every examples docs fuzz bench gpu figures lint format types dist oldest clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' Makefile

install: $(READY)  ## make .venv with regmax (editable) and every extra

demo: $(LIGHT)  ## validate the six mappings, train on real digits, draw the attention maps
	$(BIN)/regmax demo --out "$(OUT)"

# One torch thread per test process: two processes on two cores are faster than four threads. Each
# begins with half of the files, so that what the tests of a file share is made once.
test: $(READY)  ## run the tests, without those that take long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

slow: $(READY)  ## run the tests that take long: other processes, packages, processors and GPU compilers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m slow

every: $(READY)  ## both of these, by one call, which imports and collects once
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

docs: $(READY)  ## build the documentation site into build/docs; a warning fails it
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

examples: $(READY)  ## run the three experiments on generated data, a minute or two
	@for name in inflection adaptive_transformer structured_attention; do \
	  $(BIN)/python -m examples.$$name --smoke --out build/examples/$$name || exit 1; done

fuzz: $(READY)  ## a million hard rows a mapping, then random Ω for MINUTES (10); prints findings
	$(BIN)/python tests/helpers/hard_values.py --rows 1000000
	$(BIN)/python tests/helpers/fuzzing.py --minutes $(MINUTES)

bench: $(READY)  ## measure speed and memory on the CPU (BENCH=docs: into the committed page)
	$(BIN)/python -m benchmarks --out "$(BENCH)"

# By a Python that has PyTorch, Triton, pluggy and pytest (make gpu PYTHON=...): nothing is installed.
gpu:  ## on a CUDA device, without a network: each kernel beside its rivals, the GPU tests, one report
	@$(PYTHON) -m benchmarks.gpu --out "$(BENCH)" --minutes $(MINUTES)

figures: $(READY)  ## draw the figures of the pages in docs/ again, a minute or two
	$(BIN)/python docs/figures/home.py
	$(BIN)/python docs/figures/theorem.py
	$(BIN)/python docs/figures/domains.py
	$(BIN)/python docs/figures/gallery.py

lint: $(READY)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## put style and formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## check the types, strictly
	$(BIN)/mypy

dist: $(READY)  ## build wheel and sdist into dist/, and run each in an environment of its own
	.ci/dist

oldest: $(READY)  ## run a short test with the oldest PyTorch that is accepted
	.ci/oldest

clean:  ## remove .venv, builds, caches, and the folders that demo and plot wrote
	rm -rf $(VENV) build dist regmax-demo regmax-gallery .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp makes a second run instant; a change of the metadata or the constraints installs again.
# The demo needs a few extras only. All extras include them.
$(READY): EXTRAS := all
$(LIGHT): EXTRAS := fast,validate,demo
$(READY) $(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "regmax needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python could not make a virtual environment (on Debian: install python3-venv)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@ $(LIGHT)
