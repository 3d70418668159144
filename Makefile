# Needs make and Python 3.10 or later; everything else is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
WORKERS ?= 2

# The tests start many processes: none of them shall compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo lab soak test

help:
	@echo "make setup   install into .venv (again only when the requirements change)"
	@echo "make demo    run the quickstart without a browser and print its result"
	@echo "make lab     open the quickstart in JupyterLab"
	@echo "make test    lint, check types and layers, run the tests"
	@echo "make soak    half an hour of random faults in one session"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or later is needed: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,test]'
	@touch $@

demo: setup
	$(BIN)/python notebooks/demo.py

lab: setup
	$(BIN)/jupyter lab notebooks/quickstart.ipynb

soak: setup
	$(BIN)/python benchmarks/soak.py

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile
