# The daily commands. `make setup` is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: setup train check test lint fuzz clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	# Only for the tests of Mario: this package's wheel carries the game file. Nothing of it is imported.
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gym-super-mario-bros
	touch $(STAMP)

train: setup
	$(VENV)/bin/proxima train --env HalfCheetah-v5 $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# While you work: all but the slow tests.
check: lint
	$(VENV)/bin/pytest -n auto --maxprocesses 4 --dist loadgroup -m "not slow" $(ARGS)

test: lint
	$(VENV)/bin/pytest -n auto --maxprocesses 4 --dist loadgroup $(ARGS)

# Random options against the command, seeded; not part of the tests.
fuzz: setup
	$(VENV)/bin/python -m tests.fuzz $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
