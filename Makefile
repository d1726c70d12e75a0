SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# One build at a time: cargo uses all cores by itself, and the order below is from cheap to dear.
.NOTPARALLEL:
.ONESHELL:

# What to pass on: make integration ARGS=harness
ARGS ?=
CARGO ?= cargo
BENCH := $(CARGO) run --locked --release --manifest-path bench/Cargo.toml --

.PHONY: help test fmt fmt-check lint doc features unit integration redis msrv deny \
        bench bench-scale bench-instructions bench-smoke

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: redis fmt-check lint doc features bench-smoke ## The checks and all tests, which have to pass before a change goes in
	$(CARGO) test --locked --all-features

fmt: ## Format the code
	$(CARGO) fmt

fmt-check:
	$(CARGO) fmt --check

lint: ## clippy on all targets, warnings are errors
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings

doc: ## Build the documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

# clippy instead of check, for its flags are not those of the dependencies, which are checked once.
features: ## Check the library without features, and with each feature alone
	@names="$$($(CARGO) metadata --locked --no-deps --format-version 1 \
	    | grep -o '"features":{[^}]*}' | grep -o '"[^"]*":\[' | tr -d '":[')"
	for name in "" $$names; do
	    echo "clippy --no-default-features --features '$$name'"
	    $(CARGO) clippy --locked --no-default-features --features "$$name" -- -D warnings
	done

unit: ## Unit and doc tests, which need no Redis
	$(CARGO) test --locked --all-features --lib $(ARGS)
	$(CARGO) test --locked --all-features --doc $(ARGS)

# With a target named, `cargo test` does not build the examples, which the tests run.
integration: redis ## Tests on real servers: a single one, a cluster, Sentinel
	$(CARGO) build --locked --all-features --examples
	$(CARGO) test --locked --all-features --test it $(ARGS)

redis: ## Install redis-server, and what else the tests need, if it is missing
	scripts/install-test-deps.sh

msrv: ## Check the library with the oldest Rust that Cargo.toml promises
	@version="$$(sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)"
	rustup toolchain install --profile minimal --no-self-update "$$version"
	$(CARGO) +"$$version" check --locked --all-features

deny: ## Licences, advisories and sources of the dependencies (needs cargo-deny)
	$(CARGO) deny --locked check

bench: redis ## Measure against the floor and the peers
	$(BENCH) table $(ARGS)

bench-scale: redis ## Measure as keys and tasks grow
	$(BENCH) scale $(ARGS)

bench-instructions: ## Count the instructions of what needs no Redis (needs valgrind)
	@version="$$(sed -n 's/^gungraun = .*"=\([0-9.]*\)".*/\1/p' bench/Cargo.toml)"
	$(CARGO) install --quiet --locked --root bench/target/tools gungraun-runner --version "$$version"
	export PATH="$$PWD/bench/target/tools/bin:$$PATH"
	$(CARGO) bench --locked --manifest-path bench/Cargo.toml --bench instructions $(ARGS)

bench-smoke: redis ## See that the benchmarks run, in seconds and without their figures
	$(BENCH) smoke $(ARGS)
