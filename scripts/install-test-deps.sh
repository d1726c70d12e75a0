#!/usr/bin/env bash
# Installs what the tests need if it is missing: redis-server, for the feature tls-native-tls the headers
# of OpenSSL, faketime, and for fleetlimit-server nginx. Leaves no server running.
set -euo pipefail

binary="${REDIS_SERVER_BIN:-redis-server}"
packages=()
if ! command -v "$binary" >/dev/null; then
    if [ -n "${REDIS_SERVER_BIN:-}" ] || ! command -v apt-get >/dev/null; then
        cat >&2 <<TEXT
The tests start their own Redis servers, but \`$binary\` was not found. To install one:
  macOS           brew install redis
  Fedora, RHEL    dnf install valkey    (or redis)
  Alpine          apk add redis
  Arch            pacman -S valkey
If it has another name, or is not on the PATH, set REDIS_SERVER_BIN:
  REDIS_SERVER_BIN=valkey-server make test
TEXT
        exit 1
    fi
    packages+=(redis-server)
fi
# Other systems come with a TLS library.
if [ "$(uname)" = Linux ] && ! pkg-config --exists openssl 2>/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "The tests need pkg-config and the headers of OpenSSL: install openssl-devel, or the package of that kind on your system." >&2
        exit 1
    fi
    packages+=(libssl-dev pkg-config)
fi
# Debian has it where not all users look for programs.
if ! PATH="$PATH:/usr/sbin" command -v nginx >/dev/null; then
    packages+=(nginx)
fi
# Gives processes clocks that differ.
if [ "$(uname)" = Linux ] && ! command -v faketime >/dev/null; then
    packages+=(faketime)
fi
if [ "${#packages[@]}" -eq 0 ]; then
    exit 0
fi

exec "$(dirname "$0")/apt-install.sh" "${packages[@]}"
