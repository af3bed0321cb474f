#!/usr/bin/env bash
# Installs the Debian packages attnserve is built, tested or checked with (Debian 12 and 13).
#   deploy/packages.sh build    compiler and libraries
#   deploy/packages.sh test     what the tests start beside: Prometheus, Go for a foreign gRPC client
#   deploy/packages.sh peers    what others' attention is installed with, to be measured beside ours
#   deploy/packages.sh cross    a compiler for aarch64 and qemu, to run what it compiles
#   deploy/packages.sh check    clang tools for sanitizers, formatting, static analysis, fuzzing
# Several names may be given. As root, or with sudo. Does nothing where all is installed.
set -euo pipefail

build=(build-essential ca-certificates ccache cmake curl libabsl-dev libcli11-dev libdnnl-dev
       libgrpc++-dev libhwy-dev libprotobuf-dev ninja-build nlohmann-json3-dev ocl-icd-opencl-dev
       pkg-config prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc)
test=(golang-go libgmock-dev libgtest-dev prometheus python3)
check=(clang clang-format clang-tidy)
cross=(g++-aarch64-linux-gnu qemu-user)
peers=(python3-venv)

wanted=()
for set in "$@"; do
  case $set in
    build) wanted+=("${build[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    cross) wanted+=("${cross[@]}") ;;
    peers) wanted+=("${peers[@]}") ;;
    check)
      wanted+=("${check[@]}")
      # The fuzzing runtime is named after the compiler's version: 14 on Debian 12, 19 on Debian 13.
      . /etc/os-release
      case ${VERSION_ID:-} in 12) wanted+=(libclang-rt-14-dev) ;; 13) wanted+=(libclang-rt-19-dev) ;; esac ;;
    *) echo "packages.sh: unknown set \"$set\"; expected build, test, peers, cross or check" >&2; exit 2 ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || { sed -n '2,9s/^# \?//p' "$0"; exit 2; }

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "packages.sh: not root and no sudo; install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
log=$(mktemp)
if ! { "${as_root[@]}" apt-get update -q &&
       "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
         apt-get install -qy --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -20 "$log" >&2
  echo "packages.sh: apt-get failed, see above; attnserve needs Debian 12 or 13" >&2
  exit 1
fi
rm -f "$log"
