SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Runs targets one after another: cargo itself uses all cores, and `test` lists the cheap checks first.
.NOTPARALLEL:
.ONESHELL:

# Arguments for the command of a target: make integration ARGS=harness
ARGS ?=
CARGO ?= cargo
BENCH := $(CARGO) run --locked --release --manifest-path bench/Cargo.toml --

# These integration tests wait more than they compute, so four run at a time.
FAULTS := faults:: held_fleet:: outages:: recovery:: local:: local_policies:: cluster:: server_errors::
FAULTS += examples::three_processes_keep examples::processes_whose_clocks

# Each test of `timing` runs alone.
define INTEGRATION_TESTS
$(CARGO) test --locked --all-features --test it -- --skip timing::
$(CARGO) test --locked --all-features --test it --test tls timing:: -- --test-threads 1
endef

# With all features, `redis` uses rustls. These are the tests that need other features.
define TLS_TESTS
RUST_TEST_THREADS=1 $(CARGO) test --locked --no-default-features --features redis,sentinel,tls-native-tls --test tls $(ARGS)
$(CARGO) test --locked --no-default-features --features redis --lib tls
endef

.PHONY: help test test-servers mutants fuzz plots fmt fmt-check lint doc features unit sim integration faults server test-gateways test-page tls redis msrv deny \
        bench bench-scale soak chaos soak-server bench-server bench-simulate bench-flood bench-delay bench-algorithms bench-instructions bench-smoke \
        publish-dry-run semver public-api

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The library and the server together, so that the dependencies are built only once. The tests run the examples,
# which `cargo test --test` does not build.
TEST := $(CARGO) test --locked --workspace --all-features
test: redis fmt-check lint doc features bench-smoke ## Run the checks and tests that a change has to pass, except msrv and deny
	$(CARGO) build --locked --workspace --all-features --examples
	$(TEST) --lib --bins --test tls -- --skip timing::
	$(TEST) --test it -- --skip timing:: $(FAULTS:%=--skip %)
	RUST_TEST_THREADS=4 $(TEST) --test it -- --skip timing:: $(FAULTS)
	$(TEST) --test it --test tls timing:: -- --test-threads 1
	$(TEST) --doc
	$(TLS_TESTS)

fmt: ## Format the code
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

lint: ## Run clippy on all targets, with warnings as errors
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --workspace --exclude fleetlimit --all-targets -- -D warnings

doc: ## Build the documentation, with warnings as errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

# clippy, because its flags affect only this crate, so the dependencies are checked only once. `bench-smoke`
# builds the library with its default features.
features: ## Check the library without features, and with each feature alone
	@names="$$($(CARGO) metadata --locked --no-deps --format-version 1 \
	    | grep -o '"features":{[^}]*}' | grep -o '"[^"]*":\[' | tr -d '":[' | grep -vx default)"
	for name in "" $$names; do
	    echo "clippy --no-default-features --features '$$name'"
	    $(CARGO) clippy --locked --no-default-features --features "$$name" -- -D warnings
	done

unit: ## Run the unit and doc tests, which need no Redis
	$(CARGO) test --locked --all-features --lib $(ARGS)
	$(CARGO) test --locked --all-features --doc $(ARGS)

# SEEDS=1000000 simulates more of them, and FLEETLIMIT_SIM_SEED=123 a single one.
SEEDS ?= 100000
sim: ## Simulate the Redis transport with 100,000 seeds and leases with a million, which takes minutes
	FLEETLIMIT_SIM_SEEDS=$(SEEDS) $(CARGO) test --locked --profile sim --no-default-features --features redis \
	    --lib sim:: -- --nocapture $(ARGS)

integration: redis ## Run the tests on real servers: a single one, a cluster, Sentinel
	$(CARGO) build --locked --all-features --examples
	$(if $(ARGS),$(CARGO) test --locked --all-features --test it $(ARGS),$(INTEGRATION_TESTS))

faults: redis ## Run the integration tests of failures of Redis and of the network, in up to 4 minutes
	$(CARGO) build --locked --all-features --examples
	RUST_TEST_THREADS=4 $(CARGO) test --locked --all-features --test it -- $(FAULTS) --skip timing:: $(ARGS)
	$(CARGO) test --locked --all-features --test it timing::breaker -- --test-threads 1

# CASES=3000 compares fewer random policies on each.
test-servers: redis ## Run the integration tests on Redis 6.2, 7.0, 8.0 and Valkey 8.1, 9.1 (Debian; takes an hour)
	scripts/test-servers.sh $(ARGS)

mutants: redis ## Change lua/ and src/algorithm in many ways, and check that tests notice (takes hours)
	scripts/mutants.sh
	$(CARGO) install --quiet --locked --root target/tools cargo-mutants
	target/tools/bin/cargo-mutants mutants --file 'src/algorithm/*.rs' --no-default-features --features jiff,redis \
	    --cargo-arg=--lib --timeout 20 -j 2 -- algorithm

# SECONDS_OF_FUZZING=60 is enough to try it. What a target finds is in fuzz/artifacts.
SECONDS_OF_FUZZING ?= 600
fuzz: ## Feed the parsers with input that looks for new paths, 10 minutes for each target (needs nightly Rust)
	$(call INSTALL,cargo-fuzz)
	for target in $(or $(ARGS),$$($(CARGO) +nightly fuzz list)); do
	    $(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(SECONDS_OF_FUZZING)
	done

server: redis ## Run the tests of fleetlimit-server, fleetlimit-simulate and fleetlimit-plot
	$(CARGO) test --locked --workspace --exclude fleetlimit $(ARGS)

test-gateways: redis ## Run fleetlimit-server behind Envoy, Caddy and Traefik, which this downloads (Debian)
	scripts/install-gateways.sh
	RUST_TEST_THREADS=1 $(CARGO) test --locked --package fleetlimit-server --test it gateways -- --ignored $(ARGS)

test-page: redis ## Look at the live page of fleetlimit-server with Chromium, which this installs (Debian)
	scripts/install-chromium.sh
	$(CARGO) test --locked --package fleetlimit-server --test it page -- --ignored $(ARGS)

tls: redis ## Run the tests of rediss:// with each TLS library, and with none
	RUST_TEST_THREADS=1 $(CARGO) test --locked --all-features --test tls $(ARGS)
	$(TLS_TESTS)

redis: ## Install redis-server, nginx, faketime, OpenSSL headers and versions of Lua if they are missing
	scripts/install-test-deps.sh

msrv: ## Check each package with the oldest Rust that its Cargo.toml supports
	for package in . plot simulate server; do
	    version="$$(sed -n 's/^rust-version = "\(.*\)"$$/\1/p' "$$package/Cargo.toml")"
	    rustup toolchain install --profile minimal --no-self-update "$$version"
	    $(CARGO) +"$$version" check --locked --all-features --manifest-path "$$package/Cargo.toml"
	done

deny: ## Check licenses, advisories and sources of the dependencies (needs cargo-deny)
	$(CARGO) deny --locked --workspace check
	$(CARGO) deny --locked --manifest-path bench/Cargo.toml check advisories sources
	$(CARGO) deny --locked --manifest-path fuzz/Cargo.toml check advisories sources

bench: redis ## Compare with the baseline and other crates
	$(BENCH) table $(ARGS)

bench-scale: redis ## Measure with growing numbers of keys and tasks, and draw the plots
	$(BENCH) scale $(ARGS)

bench-delay: redis ## Measure at a distance from Redis, below and above the capacity, and draw the plot
	$(BENCH) delay $(ARGS)

bench-algorithms: redis ## Check what each algorithm costs Redis, relative to the token bucket
	$(BENCH) algorithms --check $(ARGS)

plots: redis ## Draw what each algorithm admits, what a fleet admits in an outage, and what leases admit
	$(BENCH) admission
	$(BENCH) outage
	$(BENCH) leases

soak: redis ## Check for 10 minutes that stalls of Redis have no lasting effect
	$(BENCH) soak $(ARGS)

soak-server: redis ## Disturb fleetlimit-server for 5 minutes: reloads, restarts of Redis, slow and hostile clients
	$(CARGO) test --locked --package fleetlimit-server --test it soak -- --ignored --nocapture $(ARGS)

bench-server: redis ## Compare fleetlimit-server with a bare gRPC service, and with a naive one on Redis
	$(CARGO) bench --locked --package fleetlimit-server --bench grpc $(ARGS)

bench-simulate: ## Compare the replay of log lines by fleetlimit-server with splitting them at spaces
	$(CARGO) bench --locked --package fleetlimit-server --bench simulate $(ARGS)

bench-flood: redis ## Check a million keys, and that memory stays bounded
	$(BENCH) flood $(ARGS)

chaos: redis ## Let several processes check for 10 minutes with one fault after another, and print a scorecard
	$(BENCH) chaos $(ARGS)

bench-instructions: ## Count instructions of code that needs no Redis (needs valgrind)
	@version="$$(sed -n 's/^gungraun = .*"=\([0-9.]*\)".*/\1/p' bench/Cargo.toml)"
	$(CARGO) install --quiet --locked --root bench/target/tools gungraun-runner --version "$$version"
	export PATH="$$PWD/bench/target/tools/bin:$$PATH"
	$(CARGO) bench --locked --manifest-path bench/Cargo.toml --bench instructions $(ARGS)
	$(CARGO) bench --locked --manifest-path bench/Cargo.toml --bench metrics --features observed $(ARGS)

bench-smoke: redis ## Check that the benchmarks run, in seconds, and the conversions of docs/migrating.md
	$(CARGO) run --locked --manifest-path bench/Cargo.toml --target-dir target -- smoke $(ARGS)
	$(CARGO) test --locked --manifest-path bench/Cargo.toml --target-dir target --test migrating

# The API is compared with the latest release, or with another revision: `make semver BASELINE=main`.
BASELINE ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)

define NEEDS_BASELINE
if [ -z "$(BASELINE)" ]; then
    echo "no release has a tag yet; to compare with a revision, set BASELINE"
    exit
fi
endef

define INSTALL
export PATH="$$PWD/target/tools/bin:$$PATH"
command -v $(1) >/dev/null || $(CARGO) install --quiet --locked --root target/tools $(1)
endef

publish-dry-run: ## Package each crate, in the order of their dependencies, and build it from its package
	$(CARGO) publish --locked --workspace --dry-run $(ARGS)

semver: ## Check that the public API is compatible with the latest release
	@$(NEEDS_BASELINE)
	$(call INSTALL,cargo-semver-checks)
	$(CARGO) semver-checks --package fleetlimit --baseline-rev "$(BASELINE)" $(ARGS)

# Both are listed from copies, because the tool would check out the other revision in this directory.
public-api: ## Show what changes in the public API since the latest release (needs nightly Rust)
	@$(NEEDS_BASELINE)
	$(call INSTALL,cargo-public-api)
	list() {
	    rm -rf "target/public-api/$$1"
	    mkdir -p "target/public-api/$$1"
	    git archive "$$2" | tar -xmf - -C "target/public-api/$$1"
	    CARGO_TARGET_DIR="$$PWD/target/public-api/target" $(CARGO) +nightly public-api --all-features -sss \
	        --manifest-path "target/public-api/$$1/Cargo.toml" >"target/public-api/$$1.txt"
	}
	list before "$(BASELINE)"
	list after HEAD
	diff --unified=0 target/public-api/before.txt target/public-api/after.txt || [ $$? = 1 ]
