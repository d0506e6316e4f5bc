# The way into everything: each target sets up what it needs by itself (scripts/setup.sh) and then
# hands over to cargo or to a script, which can as well be called directly.

SHELL := /bin/bash
FUZZ_SECONDS ?= 60
CRASH_SECONDS ?= 600
SOAK_SEEDS ?= 10000..200000
PARTS ?=
SINCE ?=
SETUP := @scripts/setup.sh
# `dafs --version` tells this commit in optimised builds, if this is a checkout and no folder in another one. Another
# commit compiles the server and the command anew.
build deb bench bench-papers pictures: export DAFS_COMMIT = \
    $(if $(wildcard .git),$(shell git describe --always --exclude='*' --dirty --abbrev=12 2>/dev/null))
# A compiler outside of PATH, such as in ~/.cargo/bin, is found by env.sh.
CARGO := @source scripts/env.sh && cargo

# The parts of `make test` that need no more than a compiler and `make lint`.
SMALL_PARTS := tidy format lint build dependencies

# Where `make install` takes the programs from.
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help run build install uninstall deb test test-long soak crashes bench bench-papers fuzz lab fmt lint deny pictures setup

help:
	@echo 'make run        serve some thousand real files, copy them out and in, compare, measure'
	@echo 'make build      the programs and libraries that make install copies'
	@echo 'make install    install them, with manual pages and units (PREFIX=/usr/local DESTDIR=); as root'
	@echo '                it builds only what is missing. make uninstall removes them'
	@echo 'make deb        Debian packages for the Debian of this machine, in target/deb'
	@echo 'make test       all that must hold before a change goes in (PARTS="lint tests" for some;'
	@echo '                SINCE=main adds the long parts that the changes since then are about)'
	@echo 'make test-long  all parts, with longer simulations and fuzzing'
	@echo 'make soak       simulated crashes of the seeds SOAK_SEEDS (now $(SOAK_SEEDS))'
	@echo 'make crashes    servers and clients killed, power cut: three times CRASH_SECONDS (now $(CRASH_SECONDS))'
	@echo 'make bench      speed and memory against raw sockets, local files, NFS-Ganesha'
	@echo 'make bench-papers  the experiments of the papers again: writes docs/benchmarks-papers.md'
	@echo 'make fuzz       every fuzz target for FUZZ_SECONDS (now $(FUZZ_SECONDS)) each'
	@echo 'make lab        only the tests with a real kernel in a guest'
	@echo 'make fmt        format all code'
	@echo 'make lint       formatting, lints and tidiness, changing nothing'
	@echo 'make deny       licences, sources and advisories of the dependencies (cargo-deny)'
	@echo 'make pictures   draw docs/pictures again: the page and dafs top, after five minutes of work'
	@echo 'make setup      only install what all of these need'

run:
	$(SETUP) run
	@scripts/run.sh

build:
	$(SETUP) build
	$(CARGO) build --release --locked -p dafs -p dafs-preload
	$(CARGO) build --release --locked -p dafs-capi

# Root may have another compiler, or none, and its files in target/ would be in the way of others.
install:
	@[[ $$(id -u) == 0 && -x $(RELEASE)/dafs && -f $(RELEASE)/libdafs_capi.a ]] || \
	    $(MAKE) --no-print-directory build
	@scripts/install.sh

uninstall:
	@scripts/install.sh --uninstall

deb: build
	$(SETUP) deb
	$(CARGO) build --release --locked -p dafs-python
	@scripts/deb.sh

test:
	$(SETUP) build $(if $(PARTS),$(if $(filter-out $(SMALL_PARTS),$(PARTS)),test lab,lint),test lab)
	@set -f; SINCE=$(SINCE) scripts/test.sh $(PARTS)

test-long:
	$(SETUP) build test lab
	@set -f; scripts/test.sh --long $(PARTS)

soak:
	$(SETUP) build
	$(CARGO) run --release -p dafs-sim -- --crashes --shrink --seeds $(SOAK_SEEDS)

bench:
	$(SETUP) build bench
	$(CARGO) build --release -p dafs -p dafs-preload
	$(CARGO) build --release -p dafs-capi
	$(CARGO) build --release -p dafs-python
	$(CARGO) run --release -p dafs-bench

bench-papers:
	$(SETUP) build bench
	$(CARGO) build --release -p dafs -p dafs-preload
	$(CARGO) build --release -p dafs-capi
	$(CARGO) build --release -p dafs-python
	$(CARGO) run --release -p dafs-bench -- papers --document docs/benchmarks-papers.md

crashes:
	$(SETUP) build test
	$(CARGO) build --locked --bins --examples
	@scripts/e2e/crashes.sh $(CRASH_SECONDS)

fuzz:
	$(SETUP) build test
	@source scripts/env.sh && fuzz/run.sh $(FUZZ_SECONDS)

lab:
	$(SETUP) build lab
	@scripts/test.sh build guest 'lab/*'

fmt:
	$(SETUP) format
	$(CARGO) fmt --all

lint:
	$(SETUP) build lint
	@scripts/test.sh tidy format lint

deny:
	$(SETUP) build
	@source scripts/env.sh && if cargo deny --version >/dev/null 2>&1; then cargo deny check; else \
	    echo 'there is no cargo-deny here; install it with: cargo install --locked cargo-deny'; \
	    exit 1; fi

pictures:
	$(SETUP) build test
	$(CARGO) build --release --locked -p dafs
	@DAFS=$(RELEASE)/dafs scripts/pictures.sh

setup:
	$(SETUP) build test lab
