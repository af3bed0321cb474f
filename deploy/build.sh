#!/usr/bin/env bash
# Configures and builds one preset (default: release) with what deploy/packages.sh installs.
#   deploy/build.sh [PRESET] [TARGET ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}
shift || true

log=build/$preset-configure.log
mkdir -p build
if ! cmake --preset "$preset" >"$log" 2>&1; then
  tail -30 "$log" >&2
  echo "build.sh: cmake could not configure preset \"$preset\"; the whole output is in $log" >&2
  exit 1
fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
cmake --build --preset "$preset" "${targets[@]}"
