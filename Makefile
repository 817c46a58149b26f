# Forebay's door. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Tools and other things that outlive a build; outside the checkout, so that clones share them.
FOREBAY_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/forebay
export FOREBAY_TEST_TOOLS ?= $(FOREBAY_CACHE)/test-tools
TOOLS := $(FOREBAY_CACHE)/tools
DENY := $(TOOLS)/bin/cargo-deny
DENY_VERSION := 0.20.2
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
TARGET := $(or $(CARGO_TARGET_DIR),target)
ARGS ?=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## system packages that the build needs (installed only when missing)
	@deploy/setup.sh build

.PHONY: setup-tests
setup-tests: setup ## the servers and tools that the tests start
	@deploy/setup.sh tests
	@tests/tools/setup.sh

.PHONY: build
build: setup ## the release binary
	$(CARGO) build --release --locked

.PHONY: demo
demo: build ## the main job on real input, undisturbed and with faults (ARGS="--scale 0.05" and so on)
	$(TARGET)/release/forebay demo $(ARGS)

.PHONY: run
run: build ## a node on the embedded default
	$(TARGET)/release/forebay serve $(ARGS)

.PHONY: test
test: setup-tests ## every test in its short form
	$(CARGO) test --workspace --locked

.PHONY: test-long
test-long: setup-tests ## every test in its long form: kill loops, many seeds, every storage server
	tests/tools/setup.sh rgw azurite
	FOREBAY_LONG=1 $(CARGO) test --workspace --locked

.PHONY: setup-bench
setup-bench: setup ## what Forebay is measured against: nginx, fio, iperf3, an S3 server
	@deploy/setup.sh bench
	@tests/tools/setup.sh rgw

BENCH := $(TARGET)/release/forebay-load run --binary $(TARGET)/release/forebay

.PHONY: bench-build
bench-build: setup-bench
	$(CARGO) build --release --locked -p forebay -p forebay-load

.PHONY: bench
bench: bench-build ## every workload beside its reference; writes bench/report.json and docs/performance.md
	$(BENCH) --profile full --out bench --page docs/performance.md $(ARGS)

.PHONY: bench-quick
bench-quick: bench-build ## the same with small volumes, in at most 3 minutes; writes below bench/out
	$(BENCH) --profile quick --out bench/out --page bench/out/performance.md $(ARGS)

.PHONY: check
check: setup fmt-check clippy deny docs tidy ## formatting, lints, licences, docs, structure

.PHONY: fmt
fmt: ## formats the code
	$(CARGO) fmt --all

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --all --check

.PHONY: clippy
clippy: setup
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: deny
deny: $(DENY)
	$(DENY) --offline check --hide-inclusion-graph bans licenses sources

$(DENY):
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_TARGET_DIR=$(FOREBAY_CACHE)/tools-build \
		$(CARGO) install cargo-deny --version $(DENY_VERSION) --locked --root $(TOOLS)
	rm -rf $(FOREBAY_CACHE)/tools-build

.PHONY: docs
docs: setup
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

.PHONY: tidy
tidy: setup
	$(CARGO) test --locked --test tidy

.PHONY: clean
clean: ## build products of this checkout
	$(CARGO) clean
