# One set of commands for people and for CI. `make run` and `make test` do all set-up themselves.
#   PYTHON=python3.12    the interpreter to build the environment with (default: the first that is 3.11 or later)
#   VENV=folder          where the environment lies
#   REQUIRE_ALL=1        install Ray, Hydra and what rehearsals need too, and fail where a test would be left out
#   SEARCH=60            how many seconds `make test-all` searches each state machine for new faults
#   SEED=140414          where these searches begin (default: the time of the commit, so that a second run does the same)

VENV ?= .venv
PYTHON ?=
BIN := $(VENV)/bin
SET := $(if $(filter 1,$(REQUIRE_ALL)),all,dev)
# Wheels only, so that a missing one is an error and not an hour of compiling; antlr4 is published as source alone.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
WHEELS := --use-pep517 --only-binary :all: --no-binary antlr4-python3-runtime

# Where byte code is not written, each process compiles the program and its tests again: 13 s of work for each worker.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run wheel dist docs test test-fast test-core test-all coverage check lint types architecture format rehearsal-env released-bridge bench lock clean
.DELETE_ON_ERROR:

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

run: $(VENV)/.run ## Set up, then tell the story of a pull request by recorded runs
	@$(BIN)/verl-e2e demo
	@! [ -t 1 ] || $(BIN)/python -m tests.stories.shown

wheel: $(VENV)/.run ## Set up, then build the wheel into dist
	@$(BIN)/python -m hatchling build -t wheel -d dist

# The list (SBOM) is of an installation by the lock, as the image and the Action have it.
dist: $(VENV)/.run requirements/release.txt ## Set up, then build into dist what a release has
	@rm -rf dist build/release && scripts/create-venv.sh build/release/listing $(PYTHON) && scripts/create-venv.sh build/release/installed $(PYTHON)
	@$(BIN)/python -m hatchling build -d dist
	@scripts/install.sh build/release/listing/bin/python requirements/release.txt --only-binary :all:
	@scripts/install.sh build/release/installed/bin/python requirements/run.txt $(WHEELS)
	@build/release/installed/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-index dist/*.whl
	@build/release/listing/bin/cyclonedx-py environment --output-reproducible --output-file dist/verl-e2e.cdx.json build/release/installed/bin/python
	@sed -i 's|"file:.*/|"|' dist/verl-e2e.cdx.json # where the wheel lay on this machine
	@build/release/installed/bin/verl-e2e --version

docs: build/docs/.ready ## Set up, then build the site of the documents into build/site, where every link must lead somewhere
	@cd tools && ../build/docs/bin/properdocs build --strict --quiet --config-file site.yml

build/docs/.ready: requirements/site.txt
	@scripts/create-venv.sh build/docs $(PYTHON)
	@scripts/install.sh build/docs/bin/python requirements/site.txt --only-binary :all:
	@touch $@

# Most tests wait for a process or a clock, so more run at a time than a small machine has cores.
PYTEST := $(BIN)/python -m pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder
SEARCH ?= 10
REHEARSAL ?= .venv-rehearsal
RELEASED := $(REHEARSAL)/released/.ready
SEED ?= $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
# The floor of core, in percent of lines and branches: it rises with what is measured and never falls.
CORE_COVERAGE := 99

test: check ## Set up, then lint, types, architecture and every test that is not slow
	$(PYTEST) -m "not slow"

test-fast: $(VENV)/.$(SET) ## Only the tests of the decisions, in seconds
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not slow" tests/core

# In a new checkout each process that begins a run would compile every test, 10 s of work for each.
$(VENV)/.compiled: $(VENV)/.$(SET)
	@$(BIN)/python -m pytest --collect-only --quiet >$@ || { tail -n 40 $@ >&2; exit 1; }

# Core must be covered by its own quick tests alone, and is measured on every run; tests/core/conftest.py says what is
# not. None of these tests waits, and each process imports them all, so there are as many as cores.
test-core: check $(VENV)/.compiled ## Every test of the decisions, with their coverage
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/core --cov=verl_e2e.core --cov-fail-under=$(CORE_COVERAGE)

test-all: test-core $(if $(filter 1,$(REQUIRE_ALL)),$(if $(filter rehearsal,$(LEAVE_OUT)),,$(RELEASED))) ## Every test
	$(PYTEST) --ignore=tests/core --search-seconds=$(SEARCH) --search-seed=$(SEED)

# Measuring takes 60 % more processor time, so CI does not measure what stories and services run.
coverage: $(VENV)/.$(SET) ## The coverage of everything but core
	$(PYTEST) --ignore=tests/core --cov=verl_e2e --cov=verl_e2e_runner

check: lint types architecture ## Everything but the tests

lint: $(VENV)/.$(SET) ## ruff, and zizmor over the workflows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/zizmor --offline --quiet .github/workflows action.yml docs/workflows/*.yml

types: $(VENV)/.$(SET) ## mypy
	$(BIN)/mypy

architecture: $(VENV)/.$(SET) ## Who may import whom
	$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.$(SET) ## Fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What `verl-e2e rehearse` runs in. The CPU build of PyTorch comes from PyTorch's own index, or from a wheel that pip
# finds in a folder (PIP_FIND_LINKS); no other index has this version, so a build for GPUs, of several GB, is never taken.
#   REHEARSAL=folder          where this environment lies
#   REHEARSAL_PYTHON=python3.12
#   TORCH_INDEX=address       the index with the CPU builds of PyTorch
REHEARSAL_PYTHON ?=
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?=
REHEARSAL_PIP := $(REHEARSAL)/bin/python -m pip --disable-pip-version-check --quiet

rehearsal-env: $(REHEARSAL)/.ready ## Set up the Python that rehearsals on a CPU run in (1.2 GB)

$(REHEARSAL)/.ready: requirements/rehearsal.txt
	@scripts/create-venv.sh $(REHEARSAL) $(REHEARSAL_PYTHON)
	@echo "installing $(TORCH) and requirements/rehearsal.txt into $(REHEARSAL)"
	@$(REHEARSAL_PIP) install --no-deps --only-binary :all: $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH) || \
	  { echo "no CPU build of PyTorch was found: make rehearsal-env TORCH_INDEX=ADDRESS names the index of PyTorch's CPU builds" >&2; exit 1; }
	@scripts/install.sh $(REHEARSAL)/bin/python requirements/rehearsal.txt $(WHEELS)
	@touch $@

# The Megatron-Bridge and Megatron-LM that the tests of rehearsals drive, as folders of sources.
$(RELEASED): requirements/released-bridge.txt $(REHEARSAL)/.ready
	@rm -rf $(@D)
	@scripts/install.sh $(REHEARSAL)/bin/python requirements/released-bridge.txt --only-binary :all: --target $(@D)
	@touch $@

released-bridge: $(RELEASED) ## Set up what the tests of rehearsals drive

bench: $(VENV)/.run ## Measure the speed of triage and of webhooks
	$(BIN)/python bench/bench.py

LOCK := --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
# The lock names no registry: any index that serves files with these digests will do.
lock: $(VENV)/.run ## Resolve the dependencies again
	$(PIP) install 'uv>=0.9'
	for set in all:all dev:dev run:build; do \
	  $(BIN)/uv --quiet pip compile pyproject.toml --group $${set#*:} --extra plots --extra postgres --output-file requirements/$${set%:*}.txt \
	    $$([ $$set = all:all ] || echo --constraints requirements/all.txt) --upgrade --universal --python-version 3.11 \
	    $(LOCK) || exit; \
	done
	echo "torch; python_version < '3'" | $(BIN)/uv --quiet pip compile --group pyproject.toml:bridge-checks \
	  --override /dev/stdin --output-file requirements/bridge-checks.txt --upgrade --universal --python-version 3.11 $(LOCK)
	echo '$(TORCH)' > $(VENV)/torch.txt
	for group in rehearsal released-bridge release site; do \
	  $(BIN)/uv --quiet pip compile --group $$group $$([ $$group != released-bridge ] || echo --no-deps) --output-file requirements/$$group.txt \
	    --no-emit-package torch --constraints $(VENV)/torch.txt --upgrade --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links || exit; \
	done

clean: ## Remove what the commands above made
	rm -rf $(VENV) build dist out .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find bot runners tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@scripts/create-venv.sh $(VENV) $(PYTHON)

$(VENV)/.run $(VENV)/.dev $(VENV)/.all: $(VENV)/.%: requirements/%.txt pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing requirements/$*.txt into $(VENV), which takes a few minutes the first time"
	@scripts/install.sh $(BIN)/python requirements/$*.txt $(WHEELS)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check || $(BIN)/python -m pip --disable-pip-version-check check
	@touch $@
