#!/usr/bin/env bash
# Builds the fuzzers with clang, runs each for some seconds over its corpus and what earlier runs found.
#   tests/fuzz/run.sh [SECONDS=30] [FUZZER ...]      for example: tests/fuzz/run.sh 3600 safetensors
# What breaks a parser is left in build/fuzz/found/; put it in tests/fuzz/corpus/ with the repair.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-30}
shift || true
fuzzers=("$@")
if [ ${#fuzzers[@]} -eq 0 ]; then
  for corpus in "$top"/tests/fuzz/corpus/*/; do fuzzers+=("$(basename "$corpus")"); done
fi

"$top/deploy/packages.sh" build test check
"$top/deploy/build.sh" fuzz "${fuzzers[@]/%/_fuzzer}"
mkdir -p "$top/build/fuzz/found"
for fuzzer in "${fuzzers[@]}"; do
  log=$top/build/fuzz/$fuzzer.log
  mkdir -p "$top/build/fuzz/corpus/$fuzzer"
  if ! "$top/build/fuzz/bin/${fuzzer}_fuzzer" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=2048 -artifact_prefix="$top/build/fuzz/found/$fuzzer-" \
      "$top/build/fuzz/corpus/$fuzzer" "$top/tests/fuzz/corpus/$fuzzer" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "fuzz: $fuzzer found a defect, see above; the input is in build/fuzz/found/" >&2
    exit 1
  fi
  grep -E '^Done' "$log" | sed "s/^Done/fuzz: $fuzzer,/"
done
