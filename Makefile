# SPDX-License-Identifier: Apache-2.0
#
# Short names for what people do here. CMakeLists.txt describes the build, tools/ holds whatever
# takes more than two lines. Where make itself is missing, `./make` stands in for it.
BUILD ?= build

.PHONY: all help train test soak bench bench-again lint san fuzz aarch64 cluster-test python python-test docs clean

all: ## build everything, the programs into build/bin
	@tools/setup.sh -n build
	@tools/build.sh $(BUILD)
	@echo "built: $(BUILD)/bin"

help: ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1 /p' Makefile | \
	    while read -r name text; do printf '  make %-14s%s\n' "$$name" "$$text"; done

train: ## train a small model on the shipped text over 8 ranks and show the result (ARGS=: more for hptrain)
	@tools/setup.sh build
	@tools/train.sh $(BUILD) $(ARGS)

test: ## every quick test (CI runs this)
	@tools/setup.sh build test
	@tools/build.sh $(BUILD)
	@tools/run_tests.sh $(BUILD) -L quick

bench: ## measure beside the peers that are here, write docs/performance.md (PART=all_reduce,...: these alone; ARGS=--quick)
	@tools/setup.sh build
	@tools/build.sh $(BUILD)
	@tools/bench/run.py $(BUILD) --part "$(PART)" $(ARGS)

bench-again: ## the same rows a second time, and how far they moved, into docs/performance.md
	@tools/build.sh $(BUILD)
	@tools/bench/run.py $(BUILD) --again --part "$(PART)" $(ARGS)

soak: ## the long tests, test_*_full
	@tools/setup.sh build test
	@tools/build.sh $(BUILD)
	@tools/run_tests.sh $(BUILD) -L full

lint: ## format, static analysis, spelling, the rooms' layers, a build with clang
	@tools/setup.sh build test lint
	@tools/lint.sh $(BUILD)

san: ## quick tests under address, undefined-behaviour and thread sanitizers
	@tools/setup.sh build test
	@tools/san.sh $(BUILD)

fuzz: ## readers of files, messages and shared memory against random bytes (SECONDS=: for each of them, else 300)
	@tools/setup.sh build fuzz
	@tools/fuzz.sh $(BUILD) $(SECONDS)

aarch64: ## quick tests for 64-bit Arm under qemu-user (installs a cross compiler)
	@tools/setup.sh build test
	@tools/aarch64.sh $(BUILD)

docs: ## write the generated pages of docs/ again
	@tools/setup.sh build
	@tools/build.sh $(BUILD)
	@tools/gen_docs.sh $(BUILD)

cluster-test: ## tests over two hosts, which are namespaces of this machine joined by a link (needs root)
	@tools/setup.sh build test mpi cluster
	@tools/build.sh $(BUILD)
	@tools/cluster.sh test $(BUILD)

python: ## the Python package, in place, for build/python/bin/python
	@tools/setup.sh build python-build
	@tools/build.sh $(BUILD) -- python_package
	@tools/python.sh $(BUILD)
	@echo "built: build/python/bin/hprun -n 2 build/python/bin/python PROGRAM"

python-test: ## tests of the Python package, with PyTorch and MindSpore, which it installs (ARGS=: more for pytest)
	@tools/setup.sh build python
	@tools/build.sh $(BUILD) -- python_package
	@tools/python.sh $(BUILD)
	@HYPER_PARALLEL_BUILD=$(BUILD) build/python/bin/python -m pytest -q tests/python $(ARGS)

clean: ## remove build/
	rm -rf $(BUILD)
