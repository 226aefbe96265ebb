# Every target installs what it needs first. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 9092
STORE ?= $(CURDIR)/data/store
DATA ?= data/node
# It also constrains the packages that pip installs only for builds. The path is relative, because pip ends it at a space.
export PIP_CONSTRAINT := constraints.txt
# If it were set, each started node would compile every module again, which takes half a second of processor time.
export PYTHONDONTWRITEBYTECODE :=
# Tests that share one Spark session, or one node for all clients, run in one worker. The others run in any worker. There are
# three workers for two cores, because tests that start nodes and clients wait for them two thirds of the time.
WORKERS ?= $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))

.PHONY: help install run test packages lowest differential faults soak check demo bench bench-kafka bench-spark lambda-package image terraform mutants docs proto lock kernels test-tools clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# --- installing -------------------------------------------------------------------------------------------------------
BUILT_FROM := pyproject.toml packaging/server/pyproject.toml constraints.txt hatch_build.py

$(VENV)/.server: $(BUILT_FROM)
	@scripts/system-packages build
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e . -e packaging/server
	@touch $@

$(VENV)/.dev: $(BUILT_FROM)
	@scripts/system-packages build
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[dev]' -e packaging/server
	@touch $@ $(VENV)/.server

install: $(VENV)/.dev kernels  ## make .venv, with the tidelog command and all that development needs

KERNEL_SOURCES := $(wildcard $(addsuffix .p[yx]*,$(basename $(shell sed -n 's/^    "\(.*\.py\)",$$/\1/p' hatch_build.py))))
KERNEL_OBJECTS := $(VENV)/.kernels

$(KERNEL_OBJECTS): $(KERNEL_SOURCES) hatch_build.py $(VENV)/.dev
	@$(BIN)/python hatch_build.py >/dev/null
	@touch $@

kernels: $(KERNEL_OBJECTS)  ## compile the native kernels in place

test-tools: install  ## install the programs that tests start: kcat, Node packages, Kafka's jars, versitygw
	@scripts/system-packages test
	@$(BIN)/python -m tests.support.install_tools

# --- running ----------------------------------------------------------------------------------------------------------
run: $(VENV)/.server  ## run a node on 127.0.0.1:9092, with data under ./data (PORT=, DATA=, STORE=, ARGS=)
	@$(BIN)/tidelog serve --listeners PLAINTEXT://127.0.0.1:$(PORT) --grpc-listener 127.0.0.1:$$(($(PORT) + 1)) --http-listener 127.0.0.1:$$(($(PORT) + 2)) \
		--data-dir '$(DATA)' --store '$(STORE)' $(ARGS)

demo: install  ## carry real flights through a node, its bucket, and PySpark (ARGS=--help)
	@scripts/system-packages demo
	@$(BIN)/python -m examples.flights.demo $(ARGS)

bench: test-tools  ## measure requests, starts and cold reads (RIVAL=host:port: also the broker at that address)
	@$(BIN)/python -m benchmarks.run $(if $(RIVAL),--rival $(RIVAL)) $(ARGS)

bench-kafka: test-tools  ## measure tidelog beside Apache Kafka 4.2.1, which it fetches, starts and stops; about an hour
	@scripts/system-packages bench
	@$(BIN)/python -m benchmarks.run --kafka --parts requests,fleet,cluster,moves,controllers,changes,beside,starts,java,partitions,cold,groups,transactions,compaction,coordinators $(ARGS)

bench-spark: test-tools  ## measure the column decoder, and a Spark scan beside prebuilt Arrow and Spark's own Kafka source
	@$(BIN)/python -m benchmarks.run --parts decoder,spark $(ARGS)

image: install  ## run the steps of packaging/Dockerfile in a chroot, without a container engine; needs root
	@scripts/system-packages image
	@$(BIN)/python -m scripts.image_in_chroot .cache/image

lambda-package: install  ## build build/lambda/verify_commit.zip, for terraform/modules/lambdas
	@$(BIN)/python scripts/lambda_package.py

terraform: test-tools  ## apply the Terraform modules to a server in place of AWS, and destroy them; needs terraform
	@$(BIN)/pytest -q -m terraform tests/terraform

# --- proving ----------------------------------------------------------------------------------------------------------
check: install  ## run ruff, mypy --strict and import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

test: test-tools  ## run all tests except those of differential, packages, terraform and faults
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --max-worker-restart 0 -m "not faults and not differential and not terraform and not packages"

differential: test-tools  ## compare every served API with Apache Kafka 4.2.1, field by field (ARGS=--write-counts)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --max-worker-restart 0 tests/differential tests/clients/test_tools.py tests/clients/test_streams.py tests/clients/test_compaction.py -m differential $(ARGS)

packages: test-tools  ## build the wheels of both distributions into dist/, install them, and test them
	@$(BIN)/python -m scripts.packages
	@$(BIN)/pytest -q -m packages tests/packaging

lowest: packages  ## test clients, commands and stores with the lowest versions that the wheels allow (ARGS=)
	@$(BIN)/python -m scripts.lowest_versions $(ARGS)

faults: test-tools  ## test kills, power losses, and deaths at one in six requests (TIDELOG_FAULT_SEED= chooses which requests)
	@$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --max-worker-restart 0 -m faults

SECONDS ?= 600
DEATHS ?= 200

soak: test-tools  ## test for longer: client histories, exactly-once copies and moves while nodes are killed (SECONDS=, DEATHS=), and deaths at every request
	@TIDELOG_FAULT_SECONDS=$(SECONDS) TIDELOG_FAULT_DEATHS=$(DEATHS) $(BIN)/pytest -q -s -m faults tests/history tests/faults/test_exactly_once.py tests/faults/test_moves.py
	@TIDELOG_FAULT_EVERY=1 $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --max-worker-restart 0 -m faults tests/faults/test_request_death.py

MUTANTS := .cache/mutants

mutants: test-tools  ## put faults into hot/, cold/ and broker/ and report those that no test detects (ARGS="--count 40 --seed 1")
	@test -x $(MUTANTS)/bin/cosmic-ray || ($(PYTHON) -m venv $(MUTANTS) && PIP_CONSTRAINT= $(MUTANTS)/bin/pip install -q cosmic-ray==8.7.0)
	@$(MUTANTS)/bin/python scripts/mutants.py --python $(BIN)/python $(ARGS)

docs: test-tools  ## generate the pages of configs, compatibility, clients and metrics, and the Grafana dashboard
	@$(BIN)/python -m service.configs.typed
	@$(BIN)/python -m service.configs.generate_docs
	@$(BIN)/python -m service.observability.generate_docs
	@$(BIN)/python -m scripts.grafana_dashboard
	@$(BIN)/python -m tests.differential.generate_docs
	@$(BIN)/python -m tests.clients.generate_docs

proto: install  ## generate code from the .proto files
	@$(BIN)/python -m grpc_api.proto.generate

lock:  ## generate constraints.txt from the two pyproject.toml files
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT= $(BIN)/python -m pip install -q uv
	@$(BIN)/uv pip compile -q --upgrade --python-version 3.11 --all-extras --no-emit-index-url --no-header --no-annotate \
		--no-emit-package tidelog pyproject.toml packaging/server/pyproject.toml -o constraints.txt

clean:  ## remove build results and caches, but not data/
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find . -name '*.so' -not -path './.venv/*' -delete
