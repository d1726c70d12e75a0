#!/usr/bin/env bash
# Installs what the tests need if it is missing: redis-server, for the feature tls-native-tls the headers
# of OpenSSL, faketime, for fleetlimit-server nginx, and the versions of Lua, for Python. Leaves no server
# running.
set -euo pipefail
cd "$(dirname "$0")/.."

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
python=target/python
has_lua() {
    "$python/bin/python" -c 'from lupa import lua51, lua52, lua53, lua54' 2>/dev/null
}
# Debian has what `venv` needs in a package of its own.
if ! has_lua && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    packages+=(python3 python3-venv)
fi
if [ "${#packages[@]}" -gt 0 ]; then
    scripts/apt-install.sh "${packages[@]}"
fi
if ! has_lua; then
    python3 -m venv --clear "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
        --requirement scripts/lupa.txt
fi
