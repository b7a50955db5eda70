#!/usr/bin/env bash
# Builds the workspace, runs its tests, then names the ten slowest: scripts/test.sh [ARGUMENT OF cargo test…]
# Of the testbed's tests those whose name has a part: scripts/test.sh --test behaviours -- PART
set -euo pipefail
cd "$(dirname "$0")/.."
# Always the whole workspace: parts of it would be built with other features, once more. It builds the program, too.
cargo test --workspace --locked --no-run
# Meanwhile most tests need no kernel. One that needs one that isn't there yet waits its turn, and fetches it itself.
"${CARGO_TARGET_DIR:-target}/debug/microslice" testbed kernels &
kernels=$!
log=$(mktemp)
trap 'rm -f "$log"; kill "$kernels" 2>/dev/null || true' EXIT

triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed-test.sh"
result=0
run() {
    cargo test --workspace --locked --no-fail-fast "$@" 2>&1 | tee -a "$log" || result=$?
}
if (($#)); then
    run "$@"
else
    run --tests
    run --doc
fi
wait "$kernels" || echo "test: not every kernel could be fetched (above): the tests that need one tried again" >&2
echo "The ten slowest tests:"
# A test's own words may stand between its name and its verdict.
awk '/^test .* \.\.\. / { name = $2 } match($0, /(ok|FAILED) <[0-9.]+s>$/) {
         split(substr($0, RSTART), word, /[<s]/); printf "%8.1f s  %s\n", word[2], name
     }' "$log" | sort -rn | sed -n '1,10p'
exit "$result"
