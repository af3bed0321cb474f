#!/usr/bin/env bash
# clang-tidy with .clang-tidy's checks over what a build has compiled; silent where all is clean.
#   tests/tidy.sh [PATTERN of paths, default '/(lib|server|client)/']
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/deploy/packages.sh" build test check
"$top/deploy/build.sh" release
cd "$top"
log=build/tidy.log
if ! run-clang-tidy -quiet -p build/release "^$top${1:-/(lib|server|client)/}" >"$log" 2>&1; then
  grep -E -A8 '(error|warning):' "$log" >&2 || tail -30 "$log" >&2
  echo "tidy.sh: clang-tidy found the above; the whole output is in $log" >&2
  exit 1
fi
