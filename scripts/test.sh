#!/usr/bin/env bash
# Builds the workspace, runs its tests, then names the ten slowest: scripts/test.sh [ARGUMENT OF cargo test…]
# Of the testbed's tests those whose name has a part: scripts/test.sh --test behaviours -- PART
set -euo pipefail
cd "$(dirname "$0")/.."
# Always the whole workspace: parts of it would be built with other features, once more. It builds the program, too.
cargo test --workspace --locked --no-run
# Meanwhile the first tests run; those that read kernels or run them wait.
"${CARGO_TARGET_DIR:-target}/debug/microslice" testbed kernels &
kernels=$!

triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed-test.sh"
log=$(mktemp)
trap 'rm -f "$log"; kill "$kernels" 2>/dev/null || true' EXIT
result=0
cargo test --workspace --locked "$@" 2>&1 | tee "$log" || result=$?
# A test's own words may stand between its name and its verdict.
wait "$kernels" || result=$?
echo "The ten slowest tests:"
awk '/^test .* \.\.\. / { name = $2 } match($0, /(ok|FAILED) <[0-9.]+s>$/) {
         split(substr($0, RSTART), word, /[<s]/); printf "%8.1f s  %s\n", word[2], name
     }' "$log" | sort -rn | head -n 10
exit "$result"
