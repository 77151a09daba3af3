# Every target first installs what it needs; a second run finds the stamp and goes straight to work.
# Needs Python 3.11+, make and Java 17+. Options: PYTHON=python3.12, DEMO_ARGS=--once, BENCH_ARGS=..., SOAK_ARGS=..., TEST_ARGS=..., TEST_WORKERS=2, LOCK_ARGS=--upgrade

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_WORKERS := 3
QUICK := $(addprefix tests/,client doctor identity journal keyindex pipeline query sources tables wire test_settings.py)
LOCKS := requirements/base.lock requirements/server.lock requirements/dev.lock

.PHONY: help setup demo check quick test durations test-rck chaos bench soak wheel lock clean java

help: ## list the targets
	@echo "DoLake: a real-time Iceberg lakehouse. Targets:"
	@sed -n 's/^\([a-z-]*\):.* ## \(.*\)/  make \1	\2/p' Makefile

setup: $(STAMP) java ## install everything into .venv, and look for Java
	@echo "ready: $(BIN)/dolake --help"

demo: $(STAMP) java ## watch a small shop's changes arrive and survive a crash
	@$(BIN)/dolake demo $(DEMO_ARGS)

check: $(STAMP) ## format, lint, types, and style as tests
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/tidy

quick: $(STAMP) ## the rooms' own fast tests: about a minute, no Spark and mostly no whole server
	@$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile -m "not slow and not spark and not chaos" $(TEST_ARGS) $(QUICK)

test: $(STAMP) java ## every test but those of `make chaos`; what continuous integration runs
	@$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m "not chaos" $(TEST_ARGS)

durations: ## `make test`, and the slowest files written into docs/explain/tests.md
	@$(MAKE) test TEST_ARGS="--durations-page $(TEST_ARGS)"

test-rck: $(STAMP) java ## Iceberg's REST compatibility kit against a running server (RCK=<path to its run-rck>, RCK_ARGS="--s3 --postgres")
	@$(BIN)/python -m tools.run_rck $(RCK_ARGS) $(RCK)

chaos: $(STAMP) java ## kills and faults at length, all examples of property tests, benchmarks in small (hours; CHAOS_ARGS=...)
	@$(BIN)/python -m pytest -q --hypothesis-profile=all -m "chaos or hypothesis" $(TEST_ARGS)
	@$(BIN)/python -m tests.oracle.chaos $(CHAOS_ARGS)

bench: $(STAMP) ## measure how many changes a second the server makes durable
	@$(BIN)/dolake bench ingest $(BENCH_ARGS)

soak: $(STAMP) java ## half an hour of mixed changes with all upkeep at work (SOAK_ARGS="--seconds 180")
	@$(BIN)/dolake bench soak --plot benchmarks/results/soak.svg --out benchmarks/results/soak-vm.json $(SOAK_ARGS)

wheel: $(STAMP) ## build dist/dolake-*.whl, to install on another machine (docs/howto/install.md)
	@$(BIN)/python -m hatchling build --target wheel

lock: $(STAMP) ## write requirements/*.lock anew (LOCK_ARGS=--upgrade for newer versions)
	@for lock in $(LOCKS); do \
		echo "lock: $$lock"; \
		$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
			--custom-compile-command "make lock" $(LOCK_ARGS) --output-file "$$lock" "$${lock%.lock}.in" || exit 1; \
	done

clean: ## remove caches and build results; .venv stays
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Spark starts in half the time from a class archive, which is made once for each .venv; without one it starts, too.
# The pipeline can fetch a Java by itself where there is a network, so a missing one is advice here and not an error.
java: $(STAMP)
	@$(BIN)/python -m dolake.pipeline.java --quiet && $(BIN)/python -m dolake.pipeline.classes 2>$(VENV)/classes.log || true

# The stamp is older than a changed lock file, so that a new lock is installed by whichever target runs next.
# The versions of pip and hatchling do not matter: uv and the build tools come from the lock file, checked by hash.
$(STAMP): requirements/dev.lock pyproject.toml
	@usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$usable" >/dev/null 2>&1; then \
		python=; \
		for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
			if $$candidate -c "$$usable" >/dev/null 2>&1; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "DoLake needs Python 3.11 or newer with its venv module, and found none. To get one, type:" >&2; \
			echo "  Debian, Ubuntu:  sudo apt-get install python3 python3-venv" >&2; \
			echo "  Fedora:          sudo dnf install python3" >&2; \
			echo "  macOS:           brew install python" >&2; \
			echo "or name the one to use:  make setup PYTHON=<path to python>" >&2; \
			exit 1; \
		fi; \
		echo "setup: $(VENV) with $$($$python --version)"; \
		$$python -m venv --clear $(VENV) || exit 1; \
	fi
	@if ! $(BIN)/uv --version >/dev/null 2>&1; then \
		echo "setup: uv"; \
		awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements/dev.lock > $(VENV)/uv.lock && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock || exit 1; \
	fi
	@echo "setup: requirements/dev.lock"
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
