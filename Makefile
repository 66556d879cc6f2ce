PY ?= .venv/bin/python
PROMPT ?= Name the capital of France.

.PHONY: help setup run test lint types bench eval screenshots train skills nano fuzz clean

help:  ## This list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: .venv/ready  ## Install Trifolium and its development tools into .venv

.venv/ready: pyproject.toml
	python3 -m venv .venv
	$(PY) -m pip install -q torch==2.13.0
	$(PY) -m pip install -q -e '.[dev]'
	@touch $@

run: setup  ## Answer a prompt: make run PROMPT="..."
	$(PY) -m trifolium run "$(PROMPT)"

test: setup  ## Run the tests
	$(PY) -m pytest

lint: setup  ## Check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: setup  ## Measure beside peers (docs/benchmarks.md), the modes, layers at the 35B shapes, passes over long contexts
	$(PY) bench/peers.py --docs docs
	$(PY) bench/report.py
	$(PY) bench/layers_35b.py
	$(PY) bench/context.py
	$(PY) bench/structured.py race
	$(PY) bench/structured.py valid
	$(PY) bench/tool_calls.py
	$(PY) bench/decisions.py
	$(PY) bench/peers.py --report --docs docs

eval: setup  ## Typed decisions and tool calls on public sets (names the packages that it needs)
	$(PY) bench/tool_eval.py
	$(PY) bench/skills.py
	$(PY) bench/decisions_quality.py rows
	$(PY) bench/decisions_quality.py jevbench
	$(PY) bench/decisions_quality.py sys1bench
	$(PY) bench/decisions_quality.py joint

screenshots: setup  ## Pictures of the server's page for the docs (needs Chromium)
	$(PY) bench/screenshots.py

train: setup  ## Train the default adapter by its recipe (hours; resumes where it stopped)
	$(PY) -m trifolium train recipes/smollm2-135m.toml

skills: setup data/skills.jsonl.gz  ## Teach the default model tools, extraction and decisions (hours; resumes)
	$(PY) -m trifolium train recipes/smollm2-135m-skills.toml

data/skills.jsonl.gz: | setup
	$(PY) -m trifolium generate-skills --out $@ --count 24000

nano: setup  ## Make the nano hybrid from nothing, with its ablation (hours; resumes where it stopped)
	$(PY) recipes/nano/make.py --docs docs

fuzz: setup  ## Ten minutes of requests to the server, made from its own OpenAPI document
	$(PY) tests/fuzz.py --seconds 600

clean:  ## Remove the environment and caches
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis
