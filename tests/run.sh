#!/usr/bin/env bash
# Installs what is needed, builds and runs every test. Ends with ctest's closing line.
#   tests/run.sh [ctest arguments, for example -R StreamDecode]
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/deploy/packages.sh" build test
"$top/deploy/build.sh" release
cd "$top/build/release"
exec ctest --output-on-failure --no-tests=error "$@"
