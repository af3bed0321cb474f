#!/usr/bin/env bash
# Times ONNX Runtime and attnserve in turn, on the same shapes and threads. Installs ONNX Runtime
# from PyPI into build/peers. (PyTorch's packages there are several GB: left out.)
#   tests/bench/peers/run.sh [--threads N] [--rounds N]
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
"$top/deploy/packages.sh" build test peers
"$top/deploy/build.sh" release attnserve_bench
peers=$top/build/peers
if [ ! -x "$peers/bin/pip" ]; then python3 -m venv "$peers"; fi
"$peers/bin/pip" install -q onnx onnxruntime numpy
"$peers/bin/python" "$top/tests/bench/peers/onnxruntime_peer.py" \
  "$top/build/release/bin/attnserve_bench" --json "$top/build/peers.json" "$@"
echo "written to build/peers.json"
