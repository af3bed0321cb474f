#!/usr/bin/env bash
# Builds attnserve, starts it with the demo model and lets it tell a story.
#   deploy/quickstart.sh          installs Debian packages, builds, tells, stops
#   deploy/quickstart.sh --keep   leaves the server running
# For Debian 12 or 13, as root or with sudo.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

keep=no
case ${1:-} in
  "") ;;
  --keep) keep=yes ;;
  *) sed -n '2,5s/^# \?//p' "$0"; [ "$1" = --help ] && exit 0; exit 2 ;;
esac

"$top/deploy/packages.sh" build
"$top/deploy/build.sh" release attnserve attnctl
bin=$top/build/release/bin

if [ "$keep" = yes ]; then
  # Outlives this script. An older server that still runs keeps its log until it ends.
  work=$top/build/quickstart
  rm -rf "$work"
  mkdir -p "$work"
else
  work=$(mktemp -d)
fi
log=$work/server.log
port=50051; http=9464
# Where the usual ports are taken, any free ones do.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if taken "$port"; then
  echo "quickstart: port $port is taken, so this server listens on another one; attnctl finds it with" \
       "--server ADDRESS, the address after \"grpc\" below"
  port=0
fi
taken "$http" && http=0
"$bin/attnserve" --listen "127.0.0.1:$port" --http "127.0.0.1:$http" >"$work/ready" 2>"$log" &
server=$!
stop() { kill -TERM "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"; }
trap stop EXIT

for _ in $(seq 300); do
  grep -q '^attnserve ready' "$work/ready" && break
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; echo "quickstart: the server did not start, see above" >&2; exit 1; }
  sleep 0.1
done
ready=$(grep '^attnserve ready' "$work/ready") || { cat "$log" >&2; echo "quickstart: the server was not ready within 30 s" >&2; exit 1; }
echo "$ready"
address=$(sed -E 's/.*grpc ([^ ]+).*/\1/' <<<"$ready")
metrics=$(sed -E 's/.*http ([^ ]+).*/\1/' <<<"$ready")

echo
"$bin/attnctl" --server "$address" generate --model-dir "$top/deploy/demo_model" --max-tokens 200
echo
if [ "$keep" = yes ]; then
  echo "metrics: http://$metrics/metrics"
  trap - EXIT
  option=
  [ "$port" != 0 ] || option=" --server $address"
  echo "the server runs on; try: $bin/attnctl$option models"
  echo "its log is $log; stop it with: kill $server"
else
  kill -TERM "$server"
  if wait "$server"; then
    echo "the server has stopped"
  else
    code=$?
    cat "$log" >&2
    echo "quickstart: the server ended with code $code, see above" >&2
    exit 1
  fi
  trap 'rm -rf "$work"' EXIT
fi
