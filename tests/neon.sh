#!/usr/bin/env bash
# Compiles lib/base and lib/simd for aarch64 (NEON) and runs their tests under qemu.
#   tests/neon.sh [ctest arguments]
# Libraries for arm64 are unpacked in build/aarch64-sysroot, to be deleted where newer ones are wanted.
# None is installed: apt works with a state of its own.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fetch_sysroot() {
  local scratch=$top/build/aarch64-packages deb
  rm -rf "$scratch"
  mkdir -p "$scratch/state" "$scratch/cache" "$scratch/root/usr/lib"
  ln -s usr/lib "$scratch/root/lib"
  : >"$scratch/status"
  local apt=(apt-get -qy -o APT::Architecture=arm64 -o APT::Architectures=arm64
             -o APT::Sandbox::User=root -o Dir::State="$scratch/state"
             -o Dir::State::status="$scratch/status" -o Dir::Cache="$scratch/cache")
  if ! { "${apt[@]}" update && "${apt[@]}" install --download-only --no-install-recommends \
         libabsl-dev libgmock-dev libgtest-dev libhwy-dev; } >"$scratch/log" 2>&1; then
    tail -20 "$scratch/log" >&2
    echo "neon.sh: apt-get could not fetch the libraries for arm64, see above" >&2
    exit 1
  fi
  for deb in "$scratch"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$scratch/root"; done
  mv "$scratch/root" "$top/build/aarch64-sysroot"
  rm -rf "$scratch"
}

"$top/deploy/packages.sh" build cross
[ -d "$top/build/aarch64-sysroot" ] || fetch_sysroot
"$top/deploy/build.sh" neon
cd "$top/build/neon"
exec ctest --output-on-failure --no-tests=error -j"$(nproc)" "$@"
