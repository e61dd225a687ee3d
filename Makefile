# `make demo` shows it, `make quick` is the daily loop, `make test` is everything. Each creates .venv on first use and works
# again without a network.
PYTHON ?= python3
VENV ?= .venv
PEERS ?= benchmarks/.venv
PEERS_PYTHON ?= $(PYTHON)
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check

DEMO := fedavg,fedprox,scaffold,feddyn,feddc,fedptr,fedptr-s,fedptr-linear

.PHONY: demo quick test lint data browser soak fuzz parity oracle docs bench example-hospitals clean

demo: $(VENV)/.core
	$(BIN)/fedptr compare examples/demo.toml --methods $(DEMO) --out runs/demo --force

# Under two minutes on two cores: no network, browser, Flower or Ray.
quick: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile -m "not real and not slow" $(ARGS)

test: $(VENV)/.engines data browser lint
	$(BIN)/python -m pytest -n $(or $(JOBS),3) --dist loadgroup --durations 15 $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests that need real data are skipped, with the reason, where it cannot be had.
data: $(VENV)/.core
	@for name in fashion-mnist cifar10; do $(BIN)/fedptr data get $$name || true; done

# Tests of the report page need Chromium; where it is not and may not be installed they are skipped, with the reason.
CHROMIUM := apt-get install -y -qq --no-install-recommends chromium chromium-driver
browser:
	@if command -v apt-get && [ "$$(id -u)" = 0 ] && ! { command -v chromium && command -v chromedriver; }; then \
	  $(CHROMIUM) || { apt-get update -qq && $(CHROMIUM); } || true; fi > /dev/null 2>&1

# Kills real runs, comparisons, recipes, audits and deployed runs at random instants; docs/reliability.md has the figures.
# `make soak MINUTES=60 KILLS=2000 FOLDER=soak ARGS="--only run,deploy"`; with the same folder it continues.
soak: $(VENV)/.test $(VENV)/.flower
	PYTHONPATH=tests/helpers OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m soak \
	  --minutes $(or $(MINUTES),60) $(if $(KILLS),--kills $(KILLS)) $(ARGS) $(FOLDER)

# Looks for bytes that a parser does not expect; `make fuzz ARGS="--target pickle --runs 1000000"`. Without: all parsers.
fuzz: $(VENV)/.fuzz
	$(BIN)/python tests/helpers/fuzz_parsers.py $(ARGS)

# Every method over TLS and in Flower's simulation, against in-process; `make test` takes one of each kind. About half an hour.
parity: $(VENV)/.flower $(VENV)/.test
	FEDPTR_ALL_METHODS=1 $(BIN)/python -m pytest tests/engines/test_deploy_real.py tests/engines/test_ray.py

oracle: $(VENV)/.core
	$(BIN)/python benchmarks/oracle.py

# The documentation, into site/. `make test` builds it too.
docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

# Two organisations, a server and two nodes of Flower over TLS, on this machine; docs/deploy.md has it for three.
example-hospitals: $(VENV)/.flower
	$(BIN)/python examples/two_hospitals/run.py

# Speed and memory against references; `make bench ARGS="--only matching"`. The libraries we are compared with have an
# environment of their own; where they cannot be installed, their rows of the table say so.
bench: $(VENV)/.core $(PEERS)/.made
	PEERS=$(abspath $(PEERS)) $(BIN)/python benchmarks/bench.py $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e ".[test]"
	@touch $(VENV)/.core $@

# Ray and Flower are large; where they cannot be installed their tests are skipped, with the reason.
$(VENV)/.engines: $(VENV)/.test
	-$(PIP) install -q -c constraints.txt -e ".[flower,ray]" || $(PIP) install -q -c constraints.txt -e ".[ray]"
	@touch $@

$(VENV)/.flower: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e ".[flower]"
	@touch $@

$(VENV)/.fuzz: $(VENV)/.test $(VENV)/.flower
	$(PIP) install -q -c constraints.txt -e ".[fuzz]"
	@touch $@

$(PEERS)/.made: benchmarks/peers.txt constraints.txt
	$(PEERS_PYTHON) -m venv $(PEERS)
	-$(PEERS)/bin/pip --disable-pip-version-check install -q -c constraints.txt -r benchmarks/peers.txt && touch $@

clean:
	rm -rf $(VENV) $(PEERS) site .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
