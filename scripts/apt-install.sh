#!/usr/bin/env bash
# Installs Debian packages, and leaves no server running that comes with them.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
    echo "Not a Debian system: install these packages, or those of that kind: $*" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
# In runlevel 1, packages do not start their services.
environment=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
"${as_root[@]}" "${environment[@]}" apt-get update
"${as_root[@]}" "${environment[@]}" apt-get install -y --no-install-recommends "$@"
# Where systemd runs, it ignores the runlevel.
if [ -d /run/systemd/system ]; then
    for service in "$@"; do
        if systemctl list-unit-files --quiet "$service.service" >/dev/null; then
            "${as_root[@]}" systemctl disable --now "$service"
        fi
    done
fi
