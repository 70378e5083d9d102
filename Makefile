# Start here: `make` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Which Python makes .venv; set-up looks for a 3.12 or 3.11 on PATH when this one is neither.
PYTHON ?= python3
RUN := .venv/bin/python
TYPED := $(wildcard ensemble python_backend tools loadtests)
MODELS := $(wildcard model_repository/*/1/model.py)

SCENARIO ?= isolation

.PHONY: help setup demo serve check test load fuzz test-families test-gateway test-compat clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv with the pinned packages and a tritonserver, no root needed
	@$(PYTHON) tools/setup.py

demo: setup ## .demo: a small model, adapters, policy, keys (kept when it is there)
	@test -f .demo/serving.yaml || $(RUN) -m tools demo

serve: demo ## set up, make the demo when missing, serve on 127.0.0.1
	@$(RUN) -m tools serve $(ARGS)

check: setup ## lint, format, types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy $(TYPED)
	@# Every model.py is a module of the same name, so each gets its own run.
	@for model in $(MODELS); do echo "mypy $$model"; $(RUN) -m mypy $$model || exit 1; done

test: check demo ## everything: checks, unit, contract, a real server
	$(RUN) -m pytest -m "not thorough" $(ARGS)

load: demo ## a load test: make load SCENARIO=isolation (`python -m loadtests list` names them)
	@$(RUN) -m tools demo --markers 80
	@$(RUN) -m loadtests run $(SCENARIO) $(ARGS)

fuzz: setup ## the property tests with new examples each time (`make test` draws the same ones)
	$(RUN) -m pytest -m hypothesis --hypothesis-profile=fuzz tests/unit $(ARGS)

test-families: setup ## every model family through a real engine (minutes)
	$(RUN) -m pytest -m families tests/families $(ARGS)

test-gateway: demo ## nginx before two real servers (part of `make test`)
	$(RUN) -m pytest -m gateway tests/gateway $(ARGS)

test-compat: demo ## the engine suite on vLLM 0.24, the NGC image's: an environment of its own
	@$(PYTHON) tools/compat.py $(ARGS)

clean: ## remove .venv, .demo and every cache
	rm -rf .venv .cache .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
