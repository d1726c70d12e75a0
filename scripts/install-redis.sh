#!/usr/bin/env bash
# Installs redis-server for the tests if it is missing, and leaves no server running.
set -euo pipefail

binary="${REDIS_SERVER_BIN:-redis-server}"
if command -v "$binary" >/dev/null; then
    exit 0
fi

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

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
# In runlevel 1 the package does not start its service.
environment=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
"${as_root[@]}" "${environment[@]}" apt-get update
"${as_root[@]}" "${environment[@]}" apt-get install -y --no-install-recommends redis-server
# systemd does not ask for the runlevel.
if [ -d /run/systemd/system ]; then
    "${as_root[@]}" systemctl disable --now redis-server
fi
