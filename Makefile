# Two commands: `make demo` and `make test`. Both create .venv on first use and work again without a network.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: demo test lint data soak oracle clean

demo: $(VENV)/.core
	$(BIN)/fedptr compare examples/demo.toml --out runs/demo --force

test: $(VENV)/.test data lint
	$(BIN)/python -m pytest -n $(or $(JOBS),2)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests that need real data are skipped, with the reason, where it cannot be had.
data: $(VENV)/.core
	@for name in fashion-mnist cifar10; do $(BIN)/fedptr data get $$name || true; done

# Kills real runs at random instants, over all methods; docs/reliability.md has the figures.
soak: $(VENV)/.test
	$(BIN)/python tests/kills.py $(or $(KILLS),120)

oracle: $(VENV)/.core
	$(BIN)/python benchmarks/oracle.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e ".[test]"
	@touch $(VENV)/.core $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
