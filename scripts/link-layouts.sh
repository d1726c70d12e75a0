#!/usr/bin/env bash
# Links the benchmarks ten times, with their functions in ten random orders, because the order alone can
# make a program 10% faster or slower: `scripts/link-layouts.sh DIRECTORY [OPTION OF CARGO]...`
#
# Needs the linker lld, which Rust uses by default on x86-64 Linux.
set -euo pipefail
cd "$(dirname "$0")/.."

directory="$1"
shift
# With several, it depends on how the compiler divides the code what it can inline.
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
rm -rf "$directory"
mkdir -p "$directory"
for seed in {1..10}; do
    "${CARGO:-cargo}" rustc --quiet --locked --release --manifest-path bench/Cargo.toml --bin fleetlimit-bench \
        --target-dir bench/target/layouts/build "$@" -- -C "link-arg=-Wl,--shuffle-sections=.text.*=$seed"
    cp bench/target/layouts/build/release/fleetlimit-bench "$directory/$seed"
done
