# The two commands are `make demo` and `make test`; `make` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

# Build folder: CARGO_TARGET_DIR, or RENKEI_TARGET_DIR (one folder shared by several clones), or ./target.
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),$(RENKEI_TARGET_DIR),target))
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# Where `make install` puts things; DESTDIR goes in front.
PREFIX ?= /usr/local
DESTDIR ?=
RELEASE := $(CARGO_TARGET_DIR)/release/renkei

.PHONY: help demo test build install deb test-deb test-netem bench bench-quick bench-loopback bench-wire docs fuzz clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Two sites on this machine, real data moved between them and checked
	@scripts/setup demo
	@demo/run

test: ## All that CI runs: format, lints, documentation, licences, tests
	@scripts/setup test
	@scripts/test

build: ## The release binary
	@scripts/setup build
	cargo build --release --locked --package renkei

install: build ## Installs below PREFIX (default /usr/local); DESTDIR is honoured
	@packaging/install "$(RELEASE)" "$(DESTDIR)" "$(PREFIX)"

deb: ## The Debian package, beside its build in the build folder
	@scripts/setup deb
	cargo build --release --locked --package renkei
	@packaging/build-deb "$(RELEASE)" "$(CARGO_TARGET_DIR)/debian"

test-deb: deb ## Installs the package in a fresh Debian and boots it (root)
	@scripts/setup deb-test
	@packaging/test-deb "$(CARGO_TARGET_DIR)/debian"

test-netem: ## Boots a kernel with netem in QEMU and tries the lab's kernel engine there
	@scripts/setup netem
	cargo build --locked --package renkei
	@scripts/test-netem "$(CARGO_TARGET_DIR)/debug/renkei"

bench: ## Moves data with renkei and all peers over emulated paths, writes docs/benchmarks.md (root, hours; BENCH_FLAGS=--missing goes on)
	@scripts/setup bench
	cargo build --release --locked --package renkei --bins --examples
	@bench/run --renkei "$(RELEASE)" --report $(BENCH_FLAGS)

bench-quick: ## Its six main lines in ten minutes, each with a verdict, printed only (root)
	@scripts/setup bench
	cargo build --release --locked --package renkei --bins --examples
	@bench/run --renkei "$(RELEASE)" --quick $(BENCH_FLAGS)

bench-loopback: ## Compares with cp and tar on this machine, writes docs/benchmarks.md
	@scripts/setup bench-loopback
	cargo build --release --locked --package renkei
	@bench/loopback --renkei "$(RELEASE)" $(BENCH_FLAGS)

bench-wire: ## Checks the lab's wire with ping and iperf3 (root)
	@scripts/setup bench
	cargo build --release --locked --package renkei
	@bench/wire --renkei "$(RELEASE)"

docs: ## Writes the generated pages of docs/ anew
	cargo build --locked --package renkei
	@scripts/docs --write

fuzz: ## Fuzzes each decoder for FUZZ_SECONDS (default 30); needs a nightly Rust
	@scripts/setup fuzz
	@fuzz/run

clean: ## Removes what was built
	cargo clean
