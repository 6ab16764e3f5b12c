# Everything starts here: `make help` lists the targets. Nothing but Python 3.11 or newer and make is needed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTHONS := python3.11 python3.12 python3.13 python3 python
PIP_TOOLS := pip-tools==7.6.2

# Test processes: two a core keep the cores busy while a test waits for its brokers.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest
# A test process that dies ends the run: xdist 3.8 may wait forever for the one in its place (its issue 1378).
PARALLEL := -n $(WORKERS) --dist loadscope --max-worker-restart 0
# Long tests may run for minutes before they count as hanging.
LONG := -o faulthandler_timeout=1800
# Handed on as they are: make run ARGS="--brokers 3", make test ARGS="-k appender", make constraints ARGS=--upgrade.
ARGS ?=

.PHONY: help setup run check lint types imports tidy test simulate compat engines environments faults audit sbom coverage \
  bench constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- install ----------------------------------------------------------------------------------------------------------

setup: $(VENV)/.tests ## Install the product and what its tests need into .venv

# Each stamp is renewed when what it was made from changes. The versions of constraints-dev.txt include those of
# constraints.txt, so that the second step only adds.
$(VENV)/.product: constraints.txt pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  for python in $(PYTHONS); do \
	    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      echo "creating $(VENV) with $$("$$python" --version)"; \
	      "$$python" -m venv --clear $(VENV) && exit 0; \
	    fi; \
	  done; \
	  echo "Lakestream needs Python 3.11 or newer with its venv module, and none of these is: $(PYTHONS)." >&2; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) and run make again." >&2; \
	  exit 1; }
	@echo "installing Lakestream (a minute, once)"
	@$(PIP) install --no-deps --require-hashes -r constraints.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@echo "compiling the kernels (seconds, once)"
	@$(VENV)/bin/python -c "from lakestream.model.kernels import record_loops; record_loops.warm()"
	@touch $@

$(VENV)/.tests: $(VENV)/.product constraints-dev.txt
	@echo "installing what the tests need"
	@$(PIP) install --no-deps --require-hashes -r constraints-dev.txt
	@touch $@

# Resolved on the oldest Python we run on: newer ones need no package beyond these.
constraints: ## Resolve the pinned versions anew (minutes; ARGS=--upgrade takes the newest)
	@test -x $(RESOLVER)/pip-compile || { python3.11 -m venv .venv-constraints && \
	  $(RESOLVER)/python -m pip install --quiet --disable-pip-version-check $(PIP_TOOLS); }
	$(RESOLVER)/pip-compile $(COMPILE) --build-deps-for editable --output-file constraints.txt pyproject.toml $(ARGS)
	@sed -i '1i # Made by `make constraints` from pyproject.toml: what the product runs on, and what builds it.' constraints.txt
	$(RESOLVER)/pip-compile $(COMPILE) --build-deps-for editable --output-file constraints-dev.txt \
	  --extra test --constraint constraints.txt pyproject.toml $(ARGS)
	@sed -i '1i # Made by `make constraints` from pyproject.toml: constraints.txt, and what the tests and checks need besides.' \
	  constraints-dev.txt
	cd $(ENVIRONMENTS) && for name in *.in; do \
	  $(CURDIR)/$(RESOLVER)/pip-compile $(COMPILE) --output-file $${name%.in}.txt $$name $(ARGS) || exit 1; done

ENVIRONMENTS := tests/engines/environments
RESOLVER := .venv-constraints/bin
# Names, versions and hashes only: where the files come from is the business of whoever installs them.
COMPILE := --quiet --generate-hashes --allow-unsafe --no-strip-extras --no-header \
  --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --annotation-style line

clean: ## Remove what was made here, .venv included
	rm -rf $(VENV) .venv-constraints .venv-engines build dist htmlcov .coverage .coverage.* .hypothesis \
	  .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find lakestream tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# --- use --------------------------------------------------------------------------------------------------------------

run: $(VENV)/.product ## Start the embedded default: one broker, a folder, a SQLite file
	@exec $(BIN)/lakestream serve $(ARGS)

bench: setup ## Compare with Apache Kafka and with the machine's floors (needs Java and Maven)
	$(BIN)/python -m bench.run $(ARGS)

# --- check and test ---------------------------------------------------------------------------------------------------

check: lint types imports tidy ## All static checks: ruff, mypy --strict, import-linter, tidy

lint: setup ## ruff
	$(BIN)/ruff check

types: setup ## mypy --strict
	$(BIN)/mypy

imports: setup ## import-linter: imports point down
	$(BIN)/lint-imports --no-logo

tidy: setup ## The rules no linter knows
	$(PYTEST) -q tests/test_tidy.py $(ARGS)

test: setup ## All tests but the long ones
	$(PYTEST) $(PARALLEL) -m "not long" $(ARGS)

simulate: setup ## The simulator, with many more seeds
	$(PYTEST) $(PARALLEL) $(LONG) tests/simulation $(ARGS)

compat: setup ## Real Kafka clients against real brokers, the long tests too
	@$(BIN)/python tests/engines/environments/build.py pyiceberg spark
	$(PYTEST) $(PARALLEL) $(LONG) tests/compatibility $(ARGS)

engines: setup environments ## Spark, Trino, DuckDB, Polars, PyIceberg, Daft, DataFusion and ClickHouse on live topics
	@$(BIN)/python tests/engines/environments/build.py wheels
	$(PYTEST) $(LONG) tests/engines/test_engines.py tests/engines/test_s3_end_to_end.py tests/engines/test_wheel_engines.py $(ARGS)

environments: setup ## What the other engines run in, below .venv-engines (600 MB to fetch, once; needs Maven and Java)
	@$(BIN)/python tests/engines/environments/build.py

faults: setup ## Brokers killed, stopped and starved under load
	$(PYTEST) $(LONG) tests/faults $(ARGS)

audit: setup ## Ask whether a pinned version has a known hole, where a service of advisories can be reached
	@$(BIN)/python .ci/audit.py constraints-dev.txt

sbom: setup ## The software bill of materials of the product, build/sbom.cdx.json
	@mkdir -p build
	@$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible -o build/sbom.cdx.json constraints.txt
	@echo "wrote build/sbom.cdx.json"

coverage: setup ## Coverage of the pure model, at least 95 %
	$(PYTEST) $(PARALLEL) -q -m "not long" --cov=lakestream.model --cov-fail-under=95 tests/unit tests/property $(ARGS)
