#!/usr/bin/env bash
# Times the README's commands in a fresh clone of the last commit: scripts/time-from-clone.sh [demo] [ci]
# `demo` (the default): setup, compile, and from the clone to the demo's screen. `ci`: .ci/run, which checks
# and tests. Packages that this machine has already are not installed again; kernels are fetched anew.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- demo
for what in "$@"; do
    [[ $what =~ ^(demo|ci)$ ]] || { echo "time: $what: none of demo, ci" >&2; exit 2; }
done
clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
trap 'rm -f "$clone.log"; exit 130' INT
unset CARGO_TARGET_DIR
export CARGO_INCREMENTAL=0

timed() {
    local what=$1 began=$SECONDS
    shift
    "$@" > "$clone.log" 2>&1 || { tail -n 30 "$clone.log" >&2; echo "time: $what failed (all it said: $clone.log)" >&2; exit 1; }
    printf '%-28s %5d s\n' "$what" $((SECONDS - began))
}

echo "$(nproc) cores, $(git rev-parse --short HEAD), load $(cut -d' ' -f1 /proc/loadavg); packages that are here are kept"
timed clone git clone --quiet . "$clone/main"
cd "$clone/main"
for what in "$@"; do
    case $what in
    demo)
        began=$SECONDS
        timed "setup" make setup
        timed "compile" make build
        timed "demo" make demo
        printf '%-28s %5d s\n' "clone to the demo's screen" $((SECONDS - began))
        ;;
    ci) timed ".ci/run" env CI=true bash .ci/run ;;
    esac
done
rm -f "$clone.log"
