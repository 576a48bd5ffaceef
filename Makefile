# Every task of the project. `make help` lists them.
# A cluster: with KUBECONFIG or CONTEXT set, that one; with a Docker engine and kind, kind; else dev/ starts one here.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

UV = $(shell dev/uv.sh)
PYTHON = $(shell dev/python.sh)
RUN = $(UV) run --python "$(PYTHON)" --locked --extra operator --extra cli --extra report --group dev --group site
# NeMo Gym pins libraries that the rest can't live with, so its tests run in an environment of their own.
RUN_GYM = UV_PROJECT_ENVIRONMENT=.venv-gym $(UV) run --python "$(PYTHON)" --locked --extra gym --extra gym-swe --group dev
E2E = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m "e2e and not faults and not large and not gpu_images and not gpu and not upgrades and not queues"
GPUS = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m gpu
GPU_IMAGES = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m gpu_images
LARGE = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m large
QUEUES = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m queues
UPGRADES = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m upgrades
FAULTS = KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) pytest -m faults
PARTS_PATH = api:kube:tracing:operator:cli:trainer:report:gateway:broker:gym:inference:conformance
PYTEST_ARGS ?=
# Side by side; a make of its own, not a part of the one that calls it.
LANES = MAKEFLAGS= $(MAKE) --no-print-directory --jobs=2 PYTEST_ARGS="$(PYTEST_ARGS)"

.PHONY: help
help: ## List the tasks
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

##@ the two commands of the README
.PHONY: demo
demo: ## Start a cluster with the images that the quickstart needs, install the operator, train, draw the reward curve
	@dev/demo.sh

.PHONY: test
test: ## All test rings, and lint
	$(LANES) lint test-unit
	$(MAKE) --no-print-directory test-browser test-prometheus
	@# One after the other: side by side they take as long on two cores, and attacks in sandboxes starve what waits.
	$(MAKE) --no-print-directory test-processes
	$(MAKE) --no-print-directory test-e2e

##@ parts of the tests
.PHONY: lint
lint: ## Format, lint, types, import contracts, generated files, links of the documentation
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	dev/run go-format
	$(RUN) mypy
	PYTHONPATH=$(PARTS_PATH) $(RUN) lint-imports
	$(MAKE) --no-print-directory verify site

.PHONY: format
format: ## Format, and fix what lint can fix
	$(RUN) ruff format .
	$(RUN) ruff check --fix .
	dev/run go-format --write

.PHONY: generate
generate: ## Regenerate the CRD, the chart's copy of it, the reference, and the dashboards, the tables of memory, metrics, versions and environments
	PYTHONPATH=api $(RUN) python -m gymtrain_api.crd
	PYTHONPATH=api:trainer $(RUN) python -m gymtrain_trainer.sizing.page
	PYTHONPATH=api:cli $(RUN) python -m gymtrain_cli.reference
	PYTHONPATH=$(PARTS_PATH) $(RUN) python -m dev.metrics
	$(RUN) python -m dev.dashboards
	$(PYTHON) -m dev.versions page
	$(PYTHON) -m tests.environments page

.PHONY: verify
verify: ## Compare the generated files with what the types say
	PYTHONPATH=api $(RUN) python -m gymtrain_api.crd --check
	PYTHONPATH=api:trainer $(RUN) python -m gymtrain_trainer.sizing.page --check
	PYTHONPATH=api:cli $(RUN) python -m gymtrain_cli.reference --check
	PYTHONPATH=$(PARTS_PATH) $(RUN) python -m dev.metrics --check
	$(RUN) python -m dev.dashboards --check
	$(PYTHON) -m dev.versions page --check
	$(PYTHON) -m tests.environments page --check

.PHONY: site
site: ## Build the documentation as a site, out/site, and check its links; seconds (SITE_REPOSITORY=https://...: the repository, for links to other files)
	@# Not --quiet: mkdocs counts no warnings then, and fails on none. The variable: the theme's makers advertise their next generator.
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build

.PHONY: wheel
wheel: ## Build the wheel of the command line and the Python client: dist/gymtrain-*.whl, for pipx install "dist/...whl[cli]"
	$(UV) build --quiet --wheel --build-constraints dev/build-requirements.txt --require-hashes --python "$(PYTHON)" --out-dir dist

.PHONY: krew
krew: ## Build krew's manifest and archives of kubectl gymtrain, dist/gymtrain.yaml and dist/kubectl-gymtrain-*: minutes (KREW_URL=https://...: the folder that they are downloaded from; SITE_REPOSITORY: the project's page; KREW_ARGS)
	$(RUN) python -m dev.krew --base-url "$${KREW_URL:?the https:// folder that the archives will be downloaded from}" --homepage "$${SITE_REPOSITORY:?the https:// page of the project}" $(KREW_ARGS)

RELEASE_ARGS ?=
.PHONY: release
release: ## Make a release, dist/VERSION: images, chart, command line, each by digest (docs/releases.md): hours (VERSION=0.2.0; SITE_REPOSITORY and KREW_URL: as for krew; REGISTRY=HOST/PATH: push; RELEASE_ARGS)
	$(RUN) python -m dev.release --version "$${VERSION:?the release, such as 0.2.0}" --repository "$${SITE_REPOSITORY:?the https:// page of the project}" \
		--base-url "$${KREW_URL:?the https:// folder that the files will be downloaded from}" --registry "$${REGISTRY:-}" $(RELEASE_ARGS)

.PHONY: test-unit
test-unit: ## Unit tests: no cluster, five minutes
	@# Much of it waits: four processes take two thirds of the time of one on two cores.
	$(RUN) pytest tests/unit -m "not gym and not torch" --numprocesses 4 --dist worksteal $(PYTEST_ARGS)
	dev/run go-test

.PHONY: test-browser
test-browser: ## Tests of the report's page in a real browser: headless Chromium, installed if need be
	CHROMEDRIVER="$$(dev/browser.sh)" $(RUN) --group browser pytest tests/browser -m browser $(PYTEST_ARGS)

.PHONY: test-prometheus
test-prometheus: ## Tests of alerts and dashboards with a real Prometheus, fetched if need be
	PROMETHEUS="$$(dev/prometheus.sh)" $(RUN) pytest tests/prometheus -m prometheus $(PYTEST_ARGS)

.PHONY: test-gym
test-gym: ## Unit tests of the Gym image: with NeMo Gym itself, four minutes
	@# Half of the time is waiting for servers that start.
	$(RUN_GYM) pytest tests/unit/gym -m gym --numprocesses 2 --dist loadfile $(PYTEST_ARGS)

.PHONY: test-api
test-api: ## Tests against a real kube-apiserver and etcd
	dev/run binaries
	dev/run binaries crds-lws crds-kueue
	@# Each process has an API server of its own; three keep two cores busy. The files' order is tests/api/conftest.py's.
	$(RUN) pytest tests/api -m api --numprocesses 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-processes
test-processes: # All tests that need no cluster but real processes, one after the other
	$(MAKE) --no-print-directory test-gym
	$(MAKE) --no-print-directory test-api

.PHONY: test-e2e
test-e2e: cluster-up images ## Tests on the real cluster with the real images
	@# The tests of the chart take the operator away; all others share it.
	$(E2E) tests/e2e/chart $(PYTEST_ARGS)
	$(E2E) tests/e2e --ignore tests/e2e/chart --numprocesses 2 --durations 25 --durations-min 30 $(PYTEST_ARGS)

.PHONY: test-agent-sandbox
test-agent-sandbox: cluster-up images ## The same with agent-sandbox's controller, built on first use; not part of `make test`
	dev/run addon agent-sandbox
	@GYMTRAIN_TEST_SANDBOX_BACKEND=AgentSandbox $(E2E) tests/e2e/sandboxes $(PYTEST_ARGS); \
	result=$$?; dev/run addon agent-sandbox --remove; exit $$result

.PHONY: test-pod-groups
test-pod-groups: ## vLLM servers of several pods with LeaderWorkerSet's controller, built on first use; not part of `make test`
	dev/run binaries
	dev/run binaries crds-lws lws
	$(RUN) pytest tests/api/test_pod_groups.py -m api $(PYTEST_ARGS)

.PHONY: test-kueue
test-kueue: ## Runs in queues with Kueue's controller, built on first use (five to ten minutes); not part of `make test`
	dev/run binaries
	dev/run binaries crds-kueue kueue
	$(RUN) pytest tests/api/test_queueing.py -m api $(PYTEST_ARGS)

.PHONY: test-queues
test-queues: cluster-up images ## ... on the real cluster: a run gives way to a more urgent one, with a checkpoint, and goes on: ten minutes; not part of `make test`
	dev/run binaries crds-kueue kueue
	$(QUEUES) tests/e2e/queues $(PYTEST_ARGS)

.PHONY: test-gang-scheduling
test-gang-scheduling: ## Runs whose pods are placed together, with the scheduler of scheduler-plugins, and with Volcano, built on first use (ten to twenty minutes); not part of `make test`
	dev/run binaries
	dev/run binaries crds-scheduler-plugins scheduler-plugins crds-volcano volcano
	$(RUN) pytest tests/api/test_gang_scheduling.py -m api $(PYTEST_ARGS)

.PHONY: test-keda
test-keda: ## vLLM servers by demand with KEDA, built on first use (a quarter of an hour); not part of `make test`
	dev/run binaries
	dev/run binaries keda
	$(RUN) pytest tests/api/test_keda.py -m api $(PYTEST_ARGS)

FAILOVER_ROUNDS ?= 200
FAILOVER_ARGS ?=
.PHONY: test-failover
test-failover: ## Kill, stop and cut off the operator that leads, and see who writes: 40 minutes; not part of `make test` (FAILOVER_ROUNDS=20: fewer; FAILOVER_ARGS="--seed 7")
	dev/run binaries
	PYTHONPATH=api:kube $(RUN) python -m tests.failover --rounds $(FAILOVER_ROUNDS) $(FAILOVER_ARGS)

CHAOS_FAULTS ?= 200
CHAOS_SEED ?=
CHAOS_ARGS ?=
CHAOS = $(RUN) python -m tests.chaos
CHAOS_OPTIONS = --faults $(CHAOS_FAULTS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(CHAOS_ARGS)
.PHONY: test-chaos
test-chaos: ## Break everything around the operator by seed, on a real API server, while played runs come and go: 20 minutes; not part of `make test` (CHAOS_FAULTS=40: fewer; CHAOS_SEED=1; CHAOS_ARGS="--runs 8")
	dev/run binaries
	PYTHONPATH=$(PARTS_PATH) $(CHAOS) api $(CHAOS_OPTIONS)

.PHONY: test-chaos-cluster
test-chaos-cluster: cluster-up images ## ... on the real cluster, with real pods, nodes, network and storage, two tiny runs at a time: hours (CHAOS_FAULTS=20 CHAOS_SEED=1: a part of it)
	KUBECONFIG="$$(dev/run kubeconfig)" dev/install.sh >/dev/null
	KUBECONFIG="$$(dev/run kubeconfig)" PYTHONPATH=$(PARTS_PATH) $(CHAOS) cluster $(CHAOS_OPTIONS)

.PHONY: test-large-models
test-large-models: cluster-up images ## Train sharded models on CPUs, one on four nodes, serve them, try trackers that hang, users that a cluster assigns, and an environment of one's own: a quarter of an hour; not part of `make test`
	$(LARGE) tests/e2e/runs $(PYTEST_ARGS)

.PHONY: test-gpu-images
test-gpu-images: cluster-up ## Check the images for GPUs without a GPU: 8 GB; not part of `make test`
	dev/run images inference-gpu trainer-gpu
	$(GPU_IMAGES) tests/e2e/gpu_images --capture=no $(PYTEST_ARGS)

.PHONY: test-gpus
test-gpus: ## Runs on GPUs, on a cluster that has them (dev/README.md, GPUs); not part of `make test`
	$(GPUS) tests/e2e/gpus $(PYTEST_ARGS)

.PHONY: test-containerd-2
test-containerd-2: ## All tests of sandboxes on containerd 2, with user namespaces and image volumes; ends the cluster before and after
	dev/run cluster-down
	GYMTRAIN_CONTAINERD=2 $(MAKE) --no-print-directory cluster-up images
	@export HELM_FLAGS="--set sandboxes.userNamespaces=true --set sandboxes.imageVolumes=true"; \
	$(E2E) tests/e2e/sandboxes $(PYTEST_ARGS) && $(FAULTS) tests/e2e/sandboxes $(PYTEST_ARGS); \
	result=$$?; dev/run cluster-down; exit $$result

.PHONY: test-faults
test-faults: cluster-up images ## Break every part while a run trains, and attack sandboxes: two hours; not part of `make test`
	$(FAULTS) tests/e2e/faults tests/e2e/sandboxes $(PYTEST_ARGS)

.PHONY: test-upgrades
test-upgrades: cluster-up images ## Upgrade from the last release and back on the real cluster while runs train, and restore runs from a backup: twenty minutes; not part of `make test`
	$(UPGRADES) tests/e2e/upgrades $(PYTEST_ARGS)

ENVIRONMENTS ?=
.PHONY: test-environments
test-environments: ## Start each of NeMo Gym's environments, play its example rows, and renew docs/environments.md: an hour; not part of `make test` (ENVIRONMENTS="mcqa": some; ENVIRONMENTS=--untried: those that nothing is recorded of)
	PYTHONPATH=api:tracing:trainer:gym:. $(RUN_GYM) python -m tests.environments run $(ENVIRONMENTS)

AZURITE = $${XDG_CACHE_HOME:-$$HOME/.cache}/gymtrain/azurite-3.37.0
.PHONY: test-data-sources
test-data-sources: ## Fetch datasets from emulators of S3, GCS, Azure and the hub: minutes, needs npm; not part of `make test`
	test -e "$(AZURITE)/node_modules/.bin/azurite-blob" || npm install --silent --no-audit --no-fund --prefix "$(AZURITE)" azurite@3.37.0
	GYMTRAIN_AZURITE="$(AZURITE)/node_modules/.bin/azurite-blob" $(RUN_GYM) --group data-sources pytest tests/data_sources -m data_sources $(PYTEST_ARGS)

VERSIONS ?=
VERSIONS_ARGS ?=
.PHONY: test-versions
test-versions: ## Try each vLLM release of docs/versions.md on this CPU: an hour, 6 GB; not part of `make test` (VERSIONS="0.25 0.32": some)
	$(PYTHON) -m dev.versions run $(VERSIONS) $(VERSIONS_ARGS)

.PHONY: lock-versions
lock-versions: # Renew the lock file of test-versions, after a change of dev/versions/pyproject.toml
	$(PYTHON) -m dev.versions lock

##@ the cluster
.PHONY: cluster-up
cluster-up: ## Start the development cluster (or check the one that KUBECONFIG names)
	dev/run cluster-up

.PHONY: cluster-down
cluster-down: ## Stop it and remove everything except the cache
	dev/run cluster-down

.PHONY: images
images: ## Build the images into the cluster
	dev/run images

.PHONY: kubeconfig
kubeconfig: ## Print the path of the kubeconfig
	@dev/run kubeconfig

.PHONY: demo-down
demo-down: cluster-down ## Remove everything that the demo made, except the cache
	rm -rf out

##@ measuring
.PHONY: bench
bench: cluster-up images ## Run the benchmarks (benchmarks/README.md)
	KUBECONFIG="$$(dev/run kubeconfig)" dev/install.sh >/dev/null
	KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) python -m benchmarks

BENCH_ARGS ?= --runs 300
.PHONY: bench-operator
bench-operator: ## ... of the operator with 300 training runs; needs no cluster (BENCH_ARGS="--runs 100": fewer)
	dev/run binaries
	PYTHONPATH=api $(RUN) python -m benchmarks.operator_load $(BENCH_ARGS)

PEERS_ARGS ?= --count 100
.PHONY: bench-peers
bench-peers: ## ... beside KubeRay's operator, built on first use: as many RayClusters as runs (PEERS_ARGS="--count 1000": more)
	dev/run binaries
	dev/run binaries kuberay
	PYTHONPATH=api:. $(RUN) python -m benchmarks.operator_peers $(PEERS_ARGS)

LEARNING_ARGS ?=
.PHONY: bench-learning
bench-learning: cluster-up ## ... of learning: SmolLM2-135M in three environments, with controls; an hour or two (LEARNING_ARGS="--only counter": some)
	dev/run images --for examples/quickstart.yaml
	KUBECONFIG="$$(dev/run kubeconfig)" dev/install.sh >/dev/null
	KUBECONFIG="$$(dev/run kubeconfig)" $(RUN) python -m benchmarks.learning $(LEARNING_ARGS)

PARTS ?=
.PHONY: bench-sandboxes
bench-sandboxes: cluster-up ## ... of sandboxes, beside agent-sandbox and kubectl exec (PARTS="exec rate": some)
	dev/run images operator sandbox $(patsubst examples/swe/%/Dockerfile,swe-%,$(wildcard examples/swe/*/Dockerfile))
	dev/run addon agent-sandbox
	dev/run addon kwok
	KUBECONFIG="$$(dev/run kubeconfig)" dev/install.sh >/dev/null
	KUBECONFIG="$$(dev/run kubeconfig)" PYTHONPATH=api:kube:tracing:trainer:broker $(RUN) python -m benchmarks.sandboxes $(PARTS)
