#!/usr/bin/env bash
# Builds and runs every benchmark; prints the table, writes build/bench.json. Some minutes.
#   tests/bench/run.sh [--rounds N] [--threads N] [BENCHMARK ...]    see attnserve_bench --help
# What others reach on the same shapes: tests/bench/peers/run.sh
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$top/deploy/packages.sh" build test
"$top/deploy/build.sh" release attnserve_bench
"$top/build/release/bin/attnserve_bench" --json "$top/build/bench.json" "$@"
echo "written to build/bench.json"
