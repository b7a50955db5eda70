#!/usr/bin/env bash
# Builds the program and `cargo test` with these arguments, runs them, then names the ten slowest tests: scripts/test.sh [ARGUMENT…]
# The kernels that tests read and run are fetched while they are built.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked --bin microslice
target=${CARGO_TARGET_DIR:-target}
"$target/debug/microslice" testbed kernels &
kernels=$!
cargo test --locked --no-run "$@"
wait "$kernels"

triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed-test.sh"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
result=0
cargo test --locked "$@" 2>&1 | tee "$log" || result=$?
# A test's own words may stand between its name and its verdict.
echo "The ten slowest tests:"
awk '/^test .* \.\.\. / { name = $2 } match($0, /(ok|FAILED) <[0-9.]+s>$/) {
         split(substr($0, RSTART), word, /[<s]/); printf "%8.1f s  %s\n", word[2], name
     }' "$log" | sort -rn | head -n 10
exit "$result"
