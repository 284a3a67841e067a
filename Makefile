# Every target does its own set-up; all it asks of the machine is python3 (3.11 or newer) and make.
# Another python:  make test PYTHON=/path/to/python3.12

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check docs clean setup

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup  ## fetch a small model, watch it answer, compare its speed with transformers
	@$(BIN)/python -m scripts.demo

test: check  ## prove it right: the checks, then every test, on real weights where they can be fetched
	@$(BIN)/python -m scripts.weights
	@echo "test: running pytest on two processes"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
	@echo "test: everything passed"

check: setup  ## lint, format, types and the size rules; seconds
	@echo "check: ruff, mypy, sizes"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "check: format differs; run $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m scripts.size

docs: setup  ## build the documentation as a site in build/site; its links are checked
	@$(BIN)/python -m scripts.site

setup:  ## make .venv and install qwill into it (the other targets do this by themselves)
	@$(PYTHON) scripts/setup.py

clean:  ## remove .venv and every cache in this folder; downloaded models stay
	@echo "clean: removing .venv, build products and caches"
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
