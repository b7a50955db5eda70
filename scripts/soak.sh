#!/usr/bin/env bash
# Property tests with other cases than everyday's, until the time is over or one fails: scripts/soak.sh
# [MINUTES [TEST ARGUMENT…]] Without arguments behind the minutes: the simulator's fuzzed scenarios, flipped
# bits of files that are read again, and limits of threads.
# Optimised, but with all assertions of a debug build. What fails is printed with its seed, and proptest keeps
# its case near the test (proptest-regressions), from where every later run repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-10}
tests=("${@:2}")
((${#tests[@]})) || tests=(
    --package microslice-experiments --package microslice-policy --package microslice-metrics
    --package microslice-cli --lib --test simulations --test decisions --test commands -- fuzz flipped without_threads
)
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
run=(cargo test --release --locked --target-dir "${CARGO_TARGET_DIR:-target}/soak")
# In front of what may end with names of tests.
"${run[@]}" --no-run "${tests[@]}"
run+=("${tests[@]}")

log=$(mktemp)
trap 'rm -f "$log"' EXIT
end=$((SECONDS + minutes * 60))
for ((rounds = 0; SECONDS < end; rounds++)); do
    seed=$((RANDOM << 30 | RANDOM << 15 | RANDOM))
    if ! PROPTEST_RNG_SEED=$seed "${run[@]}" >"$log" 2>&1; then
        cat "$log" >&2
        echo "soak: FAILED after $rounds rounds, with PROPTEST_RNG_SEED=$seed" >&2
        exit 1
    fi
    echo "soak: seed $seed passed, $(((end - SECONDS) / 60)) minutes left"
done
