#!/usr/bin/env bash
# Installs Chromium and its driver for `make test-page` if they are missing.
set -euo pipefail
cd "$(dirname "$0")"

command -v chromedriver >/dev/null || ./apt-install.sh chromium chromium-driver
