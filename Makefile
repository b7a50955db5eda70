# One word per thing a developer does. `make help` lists them.
SHELL := bash
CARGO ?= cargo
.DEFAULT_GOAL := help

.PHONY: help setup setup-build setup-package setup-tests build deb book kernels demo test test-long check soak bench campaign fmt

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

setup: ## install what building and the demo need (Debian packages; root)
	@scripts/setup.sh demo

setup-build: # the compiler's needs alone
	@scripts/setup.sh build

setup-package: # and what a package needs
	@scripts/setup.sh package

setup-tests: ## install what tests and checks need, too: servers, a browser, a cluster
	@scripts/setup.sh tests

build: setup-build ## the microslice binary, release build
	$(CARGO) build --release --locked --bin microslice

deb: setup-package build ## a Debian package, in target/debian
	scripts/deb.sh

book: ## the pages as one site with search, in target/book (needs mdbook)
	scripts/book.sh

kernels: setup build ## fetch the stock Debian kernels that demo and tests run (cached)
	target/release/microslice testbed kernels

demo: setup build ## what micro-slicing brings, in seven minutes: simulated, on real vCPUs where KVM can be opened, then two stock guests on an emulated stock host
	target/release/microslice demo

test: setup-tests ## all tests but half of the testbed's, each of which says why it is left out
	scripts/test.sh

test-long: setup-tests ## every test, and measures longer; make check says how many have passed since bpf/ changed
	MICROSLICE_TEST_LONG=1 scripts/test.sh

check: setup-tests ## what CI checks before the tests: format, layering, lint, style (crates/cli/tests/tidy)
	$(CARGO) fmt --all --check
	scripts/check-c-format.sh
	scripts/check-layering.sh
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --test tidy
	scripts/check-test-long.sh

soak: setup-tests ## fuzz that `make test` doesn't draw: each parser for a minute, then scenarios and files for ten
	scripts/fuzz.sh 60
	scripts/soak.sh 10

bench: build ## hot paths, as ratios inside one run; and what policies lose on 200 random scenarios
	$(CARGO) bench --workspace --locked
	target/release/microslice regret --scenarios 200

campaign: setup build ## faults drawn by SEED to emulated hosts, for MINUTES (30): does what is promised hold? (SCHEDULER=none: the kernel's own)
	target/release/microslice testbed campaign --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1) --scheduler $(or $(SCHEDULER),microslice)

fmt: ## format everything
	$(CARGO) fmt --all
	clang-format-19 -i $$(git ls-files '*.c' '*.h')
