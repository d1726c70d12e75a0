#!/usr/bin/env bash
# Installs what the tests need and the machine lacks: redis-server, and the headers of OpenSSL for
# the feature tls-native-tls. Leaves no server running.
set -euo pipefail

binary="${REDIS_SERVER_BIN:-redis-server}"
packages=()
if ! command -v "$binary" >/dev/null; then
    if [ -n "${REDIS_SERVER_BIN:-}" ] || ! command -v apt-get >/dev/null; then
        cat >&2 <<TEXT
The tests start servers of their own and found no \`$binary\`. To install one:
  macOS           brew install redis
  Fedora, RHEL    dnf install valkey    (or redis)
  Alpine          apk add redis
  Arch            pacman -S valkey
If it is not called redis-server, or not on the PATH, set REDIS_SERVER_BIN:
  REDIS_SERVER_BIN=valkey-server make test
TEXT
        exit 1
    fi
    packages+=(redis-server)
fi
# Elsewhere than on Linux, TLS comes with the system.
if [ "$(uname)" = Linux ] && ! pkg-config --exists openssl 2>/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "The tests need the headers of OpenSSL and pkg-config: install openssl-devel, or what your system calls it." >&2
        exit 1
    fi
    packages+=(libssl-dev pkg-config)
fi
if [ "${#packages[@]}" -eq 0 ]; then
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
# In runlevel 1 a package does not start its service.
environment=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
"${as_root[@]}" "${environment[@]}" apt-get update
"${as_root[@]}" "${environment[@]}" apt-get install -y --no-install-recommends "${packages[@]}"
# systemd does not ask for the runlevel.
if [[ " ${packages[*]} " = *" redis-server "* && -d /run/systemd/system ]]; then
    "${as_root[@]}" systemctl disable --now redis-server
fi
