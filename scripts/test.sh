#!/usr/bin/env bash
# Builds the workspace, runs its tests, then names the ten slowest: scripts/test.sh [ARGUMENT OF cargo test…]
# Of the testbed's tests those whose name has a part: scripts/test.sh --test behaviours -- PART
set -euo pipefail
cd "$(dirname "$0")/.."
# What is tested, for the record of behaviours.
commit=$(git rev-parse --short=12 HEAD)
[[ -z $(git status --porcelain -- bpf policy crates) ]] || commit+=-changed
# Always the whole workspace: parts of it would be built with other features, once more. It builds the
# program, too.
cargo test --workspace --locked --no-run
"${CARGO_TARGET_DIR:-target}/debug/microslice" testbed kernels &
kernels=$!
log=$(mktemp)
lane=
trap 'kill "$kernels" 2>/dev/null || true; [[ -z $lane ]] || kill -- "-$lane" 2>/dev/null || true; rm -f "$log"*' EXIT

triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${triple}_RUNNER=$PWD/scripts/timed-test.sh"
result=0
# What only make test-long runs is ignored otherwise, and cargo says why.
long=()
[[ -z ${MICROSLICE_TEST_LONG:-} ]] || long=(--include-ignored)
run() {
    local arguments=("$@") separator=(--)
    [[ " $* " != *" -- "* ]] || separator=()
    ((${#long[@]})) && arguments+=("${separator[@]}" "${long[@]}")
    cargo test --workspace --locked --no-fail-fast "${arguments[@]}" 2>&1 | tee -a "$log" || result=$?
}
# A test that needs a kernel that isn't there fetches it, or says that it can't be had.
await_kernels() {
    wait "$kernels" || echo "test: not every kernel could be fetched (above): the tests that need one try again" >&2
}
# Each behaviour that ran: name, verdict, seconds. A test's own words may stand between name and verdict.
verdicts() {
    awk '/^test .* \.\.\. / { name = $2 }
         match($0, /(ok|FAILED) <[0-9.]+s>$/) && name ~ /^(default_host|other_hosts)::/ {
             split(substr($0, RSTART), word, /[ <s]+/)
             print name, word[1], word[2]
         }' "$log"
}
# Behaviours that would have begun after MICROSLICE_TESTS_UNTIL. They have no verdict.
left_out() {
    awk '/^test .* \.\.\. / { name = $2 } /LEFT OUT: / { print name }' "$log"
}
# More than this is no accident.
RETRIED_MAX=6
# Arguments that name the integration tests of the crates that `grep "$@"` finds.
integration_tests() {
    { compgen -G 'crates/*/tests/*.rs' || true; compgen -G 'crates/*/tests/*/main.rs'; } | grep "$@" | sed -E 's|(/main)?\.rs$||; s|.*/|--test |'
}
if (($#)); then
    await_kernels
    run "$@"
else
    # These need no kernels, which are fetched meanwhile.
    # shellcheck disable=SC2046
    run --lib --bins $(integration_tests -E '^crates/(policy|experiments|studies)/')
    await_kernels
    # shellcheck disable=SC2046
    run $(integration_tests -vE '^crates/(policy|experiments|studies)/|/behaviours/')
    run --doc
    # Behaviours go in two lanes, each with a host of its own: what they boot, load and read mostly keeps one
    # core busy. A job of its own process group, so that Ctrl-C ends its host, too.
    without_lanes=$result
    results_before=$(grep -c '^test result: ' "$log" || true)
    set -m
    # The second lane takes over what makes both about as long.
    also=(default_host::{shares,symbols,vm_policies,vmm_threads,weights,windows}::)
    (result=0 log=$log.lane && run --test behaviours -- other_hosts "${also[@]}" > /dev/null && exit "$result") &
    lane=$!
    set +m
    run --test behaviours -- default_host "${also[@]/#/--skip=}"
    wait "$lane" || result=$?
    lane=
    tee -a "$log" < "$log.lane"
    # What emulation is too slow for beside another host isn't a fault, and what is a fault fails alone, too.
    mapfile -t failed < <(verdicts | awk '$2 == "FAILED" { print $1 }' | grep -vxFf <(left_out))
    ended=$(($(grep -c '^test result: ' "$log" || true) - results_before))
    if ((ended == 2 && ${#failed[@]} == 0)); then
        result=$without_lanes
    elif ((ended == 2 && ${#failed[@]} <= RETRIED_MAX)); then
        printf 'test: FAILED beside the other lane, and tried once more alone: %s\n' "${failed[@]}" >&2
        result=$without_lanes
        # They may begin ten minutes after all others.
        [[ -z ${MICROSLICE_TESTS_UNTIL:-} ]] || MICROSLICE_TESTS_UNTIL=$((MICROSLICE_TESTS_UNTIL + 600))
        run --test behaviours -- --exact "${failed[@]}"
    fi
fi
mapfile -t omitted < <(left_out)
if ((${#omitted[@]} > 0)); then
    echo "test: LEFT OUT, since the time for tests was over before they could begin; make test-long runs all:" >&2
    printf '%s\n' "${omitted[@]}" >&2
fi
echo "The ten slowest tests:"
# A test's own words may stand between its name and its verdict.
awk '/^test .* \.\.\. / { name = $2 } match($0, /(ok|FAILED) <[0-9.]+s>$/) {
         split(substr($0, RSTART), word, /[<s]/); printf "%8.1f s  %s\n", word[2], name
     }' "$log" | sort -rn | sed -n '1,10p'
# What the behaviours came to stays in the repository: scripts/check-test-long.sh reads it.
if grep -qE '^test (default_host|other_hosts)::' "$log" && [[ -z ${CI:-} ]]; then
    record=testbed/behaviours.tsv
    verdicts | awk -v commit="$commit" -v date="$(date +%F)" -v OFS='\t' \
        '{ print $1, tolower($2), $3, commit, date }' > "$log.behaviours"
    # The last verdict counts.
    { tac "$log.behaviours"; grep -v '^#' "$record" 2>/dev/null || true; } | LC_ALL=C sort -s -t $'\t' -u -k1,1 > "$log.all"
    { printf '# behaviour\tverdict\tseconds\tcommit\tdate: written by scripts/test.sh\n'; cat "$log.all"; } > "$record"
    rm -f "$log.behaviours" "$log.all"
fi
exit "$result"
