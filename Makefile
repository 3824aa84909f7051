# Every target first makes .venv hold what uv.lock says (tools/python-env): nothing else needs to be installed.
#   make up ARGS='--port 9000 --gpus 2'     make test ARGS='tests/events -k suspend'
SHELL := /bin/bash
PY := .venv/bin/python
ARGS ?=
# Each process of a run loads these plugins alone: what others bring takes a second each time, and is used by tests/faults.
LEAN := PYTHONDONTWRITEBYTECODE= PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTEST_PLUGINS=xdist.plugin,pytest_timeout,anyio.pytest_plugin,_hypothesis_pytestplugin
.PHONY: help venv up up-kubernetes kube-tools test test-e2e test-faults test-kubernetes test-kubernetes-faults explore mutants nightly lint fmt types contracts bench bench-short bench-placement bench-scheduler bench-fairness bench-peers docs check lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 24
venv: ## make .venv hold what uv.lock says
	@tools/python-env
up: venv ## run everything on this machine (Ctrl-C stops it)
	@exec .venv/bin/muster up $(ARGS)
up-kubernetes: venv kube-tools ## the same, with a Kubernetes cluster of simulated nodes (ARGS='--nodes 8': eight)
	@exec $(PY) -m development.kubernetes.up $(ARGS)
test: venv ## the tests of the parts, on real servers
	@$(LEAN) exec $(PY) -m pytest -n auto --dist worksteal --ignore tests/faults --ignore tests/kubernetes -m "not e2e and not faults and not kubernetes and not kubernetes_faults" $(ARGS)
test-e2e: venv ## the tests that start all of Muster and use it as people do (ARGS=--short: a third of them)
	@$(LEAN) exec $(PY) -m pytest tests/e2e tests/embedded -n 2 --dist loadfile -m e2e $(ARGS)
test-faults: venv ## the long runs: real processes killed under load, requests at every edge (ARGS=--short: short forms)
	@exec $(PY) -m pytest tests/faults -m faults --timeout 3600 $(ARGS)
kube-tools: ## build a Kubernetes control plane for tests (once per machine, some ten minutes; needs Go)
	@exec tools/kube/kube-tools
test-kubernetes: venv kube-tools ## the tests on a real Kubernetes API server (ARGS=--short: a third of them)
	@exec $(PY) -m pytest tests/kubernetes -m kubernetes -n 2 --dist loadfile $(ARGS)
test-kubernetes-faults: venv kube-tools ## break that API server, its nodes and the way to it, under load
	@exec $(PY) -m pytest tests/kubernetes/faults -m kubernetes_faults --timeout 3600 $(ARGS)
explore: venv ## the property tests over and over with other draws, half an hour (EXPLORE_SECONDS=600: ten minutes)
	@exec tools/explore $(ARGS)
mutants: venv kube-tools ## whether the suites see every seeded bug (docs/mutants.md), in an hour at most
	@exec $(PY) -m tests.mutants $(ARGS)
nightly: venv kube-tools ## every slow suite in full, one after the other, with a summary
	@exec tools/nightly $(ARGS)
lint: venv ## style rules and formatting
	@$(PY) -m ruff check . && exec $(PY) -m ruff format --check .
fmt: venv ## mend what can be mended
	@$(PY) -m ruff check --fix-only -q . ; exec $(PY) -m ruff format .
types: venv ## the strict type checker
	@exec $(PY) -m basedpyright $(ARGS)
contracts: venv ## who may import whom
	@exec .venv/bin/lint-imports --no-logo
bench: venv ## figures, each beside a bare baseline of the same run
	@exec $(PY) -m benchmarks $(ARGS)
bench-short: venv ## the same in a minute or two, for CI
	@exec $(PY) -m benchmarks --short $(ARGS)
bench-placement: venv ## how much of a trace's GPUs the scheduler gives away, beside FGD and best fit (some fifteen minutes)
	@exec $(PY) -m benchmarks.placement $(ARGS)
bench-scheduler: venv ## what a plan costs
	@exec $(PY) -m benchmarks scheduler $(ARGS)
bench-fairness: venv ## thirty days of too much load on a virtual clock: waits, evictions, shares (some minutes)
	@exec $(PY) -m benchmarks fairness $(ARGS)
bench-peers: venv ## other schedulers' own benchmarks on ours, with their figures beside
	@exec $(PY) -m benchmarks peers $(ARGS)
docs: venv ## make reference pages and client from the code, check every page (ARGS=--check: fail where one is stale)
	@$(PY) -m muster.cli.reference $(ARGS) && $(PY) tools/reference.py $(ARGS) && $(PY) tools/client.py $(ARGS) && exec $(PY) tools/docs.py
check: lint types contracts test ## what a change must pass
lock: venv ## resolve the dependencies anew
	@$$(command -v uv || echo .venv/bin/uv) lock --no-python-downloads --python $(PY) $(ARGS)
clean: ## remove what can be made again (never data)
	@rm -rf .venv dist build out .pytest_cache .ruff_cache .hypothesis .import_linter_cache; find . -name __pycache__ -type d -prune -exec rm -rf {} +
