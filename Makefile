# Each target does everything it needs, also on a machine that has only Python 3.11 or 3.12 and a C++ compiler.
#   make run                 the whole pipeline: tasks, measuring, training, chain, evaluation, registry, tuning
#   make run PROFILE=full    the same with the sizes of a named profile (see `tcl profile --help`)
#   make test                the tests, but for those marked slow
#   make test-all            those too: whole runs of the pipeline, the comparisons and the examples, kills and servers
#   make lint                what a linter and a type checker find without running anything
#   make docs                pages of the public functions, from their docstrings -> build/api
#   make bench               the comparisons with other cost models, samplers and tuners
#   make ui                  Prefect and MLflow in the browser, on this machine only
#   make serve               tell the Prefect server of PREFECT_API_URL what runs when (params.yaml, schedules)
#   make clean               remove the environment and caches; measurements and models stay

SHELL := /bin/bash
VENV  := .venv
EXTRAS ?= tvm,trees,pipeline,dev
LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true

.PHONY: help run test test-all lint docs bench ui serve setup clean
help:
	@sed -n 's/^#   //p' Makefile

run: setup
	@$(if $(PROFILE),python -m tcl_core.cli profile $(PROFILE))
	@python -m flows.pipeline

# Two processes, since one leaves nearly half of two CPUs idle; what the tests of a file share is made once.
PYTEST := python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: setup
	@$(PYTEST) -m "not slow"

test-all: setup
	@$(PYTEST)

lint: setup
	@ruff check
	@ruff format --check --quiet
	@mypy
	@mypy --config-file bench/mypy.ini

docs: setup
	@python -m pdoc --docformat restructuredtext -o build/api tcl_core tcl_core.datasets tcl_core.samplers tcl_core.errors

# What was done with this code is not done again; say MINUTES=55 for a part, QUICK=1 for each in ten minutes, NAMES="store search".
bench: setup
	@python bench/_all.py $(NAMES) $(if $(QUICK),--quick) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FORCE),--force)

# MLflow without its job workers: seven processes that only its evaluation of language models needs.
ui: setup
	@echo "Prefect http://127.0.0.1:4200    MLflow http://127.0.0.1:5000    (each says when it is up)    Ctrl-C stops both"
	@trap 'kill $$(jobs -p) 2>/dev/null; wait' EXIT; trap 'exit 0' INT TERM; \
	prefect --no-prompt server start --host 127.0.0.1 & \
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
	    --backend-store-uri "sqlite:///$(CURDIR)/mlflow.db" --default-artifact-root "$(CURDIR)/mlruns" & \
	wait

serve: setup
	@python -m flows.serve

setup: $(VENV)/.installed

# uv installs four times faster; where it cannot be had, pip does the same.  Compiled packages (pip does that unasked) save every process
# seconds where Python may not write its cache.
$(VENV)/.installed: pyproject.toml constraints.txt
	@set -e; \
	for python in python3.11 python3.12 python3; do \
	    if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then break; fi; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then echo "no Python 3.11 or 3.12 found: install one of them, then run make again" >&2; exit 1; fi; \
	[ -x $(VENV)/bin/python ] || $$python -m venv $(VENV); \
	$(VENV)/bin/python -m pip install --quiet $(LINKS) -c constraints.txt uv || true; \
	if $(VENV)/bin/python -m uv --version >/dev/null 2>&1; then \
	    install="$(VENV)/bin/python -m uv pip install --compile-bytecode --python $(VENV)/bin/python"; \
	else install="$(VENV)/bin/python -m pip install"; fi; \
	$$install $(LINKS) -c constraints.txt -e '.[$(EXTRAS)]'; \
	git rev-parse --git-dir >/dev/null 2>&1 || $(VENV)/bin/python -m dvc config --local core.no_scm true; \
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	find tcl_core flows tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
