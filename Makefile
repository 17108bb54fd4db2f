# Everything a developer needs. Each target makes its own .venv first; needed: Python >= 3.11, make, git.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# of `make test`, each with folders of its own; 0: none, as a debugger wants it
WORKERS ?= 2
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo hub-demo test test-all nightly test-rest test-scenarios test-system test-frameworks field-cases check bench bench-scale docs drop-zone pictures dist deb wheel-training wheel-native clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## hang a real 4-rank job and name the culprit (ARGS="--fault fifo")
	$(RUN) -m mldebug demo $(ARGS)

hub-demo: $(STAMP) ## NATS, PostgreSQL, two hubs, ten simulated agents, and the page of the fleet (needs nats-server, postgresql)
	PYTHONPATH=tests $(RUN) tests/bench/hub_demo.py $(ARGS)

test: $(STAMP) ## unit and golden tests and a few real jobs (6 minutes)
	$(RUN) tests/in_parts.py $(WORKERS) -m "(not scenario or smoke) and not long" $(ARGS)

test-all: $(STAMP) ## every test, all real jobs included
	$(RUN) -m pytest $(ARGS)

nightly: $(STAMP) ## what takes minutes, in full: soak, kills, captures, networks (each night or by hand, as root)
	CI=true MLDEBUG_SAFETY_ROUNDS=300 MLDEBUG_KILL_ROUNDS=200 $(RUN) -m pytest tests/processes/agent/test_safety.py \
		tests/processes/agent/test_agent_life.py tests/processes/agent/test_soak.py tests/unit/training/test_tracer.py $(ARGS)
	DS_BUILD_OPS=0 $(RUN) -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt --group frameworks
	MLDEBUG_TEST_FRAMEWORKS=1 $(RUN) -m pytest -m long $(ARGS)
	$(RUN) -m pytest tests/unit/diagnosis/test_package_waits.py $(ARGS)

test-rest: $(STAMP) ## what test-all has more than test
	$(RUN) -m pytest -m "scenario and not smoke" $(ARGS)

test-scenarios: $(STAMP) ## all real jobs
	$(RUN) -m pytest -m scenario $(ARGS)

test-system: $(STAMP) ## the unit, its rights, and the package on a booted Debian (as root)
	$(RUN) -m pytest -m system $(ARGS)

test-frameworks: $(STAMP) ## small trainings with transformers, Lightning, DeepSpeed, Megatron, JAX (installs them: 350 MB)
	DS_BUILD_OPS=0 $(RUN) -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt --group frameworks
	MLDEBUG_TEST_FRAMEWORKS=1 $(RUN) -m pytest tests/processes/training/test_frameworks.py tests/processes/training/test_frameworks_ranks.py tests/processes/training/test_jax.py tests/unit/diagnosis/test_package_waits.py $(ARGS)

field-cases: $(STAMP) ## judge all evidence of tests/fixtures/field and write docs/field-cases.md anew
	$(RUN) -m pytest --quiet tests/unit/diagnosis/test_field_cases_page.py --update-golden

check: $(STAMP) ## lint, format, types, import rules
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m mypy --config-file tests/mypy.ini $$(git ls-files 'tests/*.py' | grep -v fixtures/)
	MYPYPATH=deploy/grafana $(RUN) -m mypy deploy/grafana/*.py
	MYPYPATH=deploy/site:agents:exporters $(RUN) -m mypy deploy/site/*.py
	$(VENV)/bin/lint-imports

bench: $(STAMP) ## every benchmark but the soak and those of GPUs, and one table (ARGS="watch scrape": only those)
	PYTHONPATH=tests $(RUN) tests/bench/all.py $(ARGS)

bench-scale: $(STAMP) ## 64 and 1,024 simulated agents of 8 ranks: from the notice of a stall to the report (ARGS="256")
	PYTHONPATH=tests $(RUN) tests/bench/peers.py $(ARGS)

docs: $(STAMP) ## build the documentation site into dist/site (open dist/site/index.html)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict -f deploy/site/mkdocs.yml

pictures: $(STAMP) ## take the pictures of README and docs anew: a real job that hangs, a real agent (needs chromium and PyTorch)
	MLDEBUG_TEST_IMAGES=$(CURDIR)/docs/images PYTHONPATH=tests $(RUN) -m pytest -q -m scenario tests/processes/web/test_web.py

drop-zone: $(STAMP) ## build the page that judges dropped dumps into dist/site/drop (needs npm; `make docs` first)
	$(RUN) deploy/site/drop_zone/build.py dist/site/drop

dist: $(STAMP) ## build sdist and wheels of all three packages into dist/ (needs a C compiler)
	PYTHON=$(RUN) deploy/build-dist dist

deb: ## build the Debian package into dist/ (on Debian, without root)
	deploy/debian/build-deb dist

wheel-training: $(STAMP) ## build the wheel of the hook alone into dist/, for images that jobs train in
	$(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist deploy/training-wheel

wheel-native: $(STAMP) ## build the tracer's writer in C into dist/, for this Python (needs a C compiler)
	$(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist deploy/training-native

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mldebug needs Python >= 3.11; name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,pystack,cluster]' --group dev
	@touch $@
