#!/usr/bin/env bash
# The house's rules (docs/architecture.md), checked: what may depend on what.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
fail() { echo "layering: $*" >&2; failed=1; }

# policy/ includes nothing outside itself, and has no kernel types, conditionals or floats.
while IFS=: read -r file line include; do
    [[ $include =~ \"([a-z_]+\.h)\" && -f policy/${BASH_REMATCH[1]} ]] || fail "$file:$line: policy/ may include only its own headers: $include"
done < <(grep -nHE '^\s*#\s*include' policy/*.h policy/*.c 2>/dev/null || true)
if grep -nHE '^\s*#\s*(if|ifdef|elif)\b' policy/*.h 2>/dev/null; then fail "policy/ has no conditional compilation"; fi
if grep -nHwE 'float|double' policy/*.h 2>/dev/null | grep -vE ':\s*(/?\*|//)'; then fail "policy/ has no floating point"; fi

# Crates: who may depend on whom.
declare -A allowed=(
    [border]="" [policy]="border" [symbols]="" [metrics]=""
    [sim]="policy metrics symbols" [host]="border policy symbols metrics" [testbed]="metrics"
    [cli]="policy symbols metrics sim host testbed"
)
for crate in "${!allowed[@]}"; do
    for dependency in $(grep -oE '^microslice-[a-z]+' "crates/$crate/Cargo.toml" | sed 's/microslice-//' | sort -u); do
        [[ " ${allowed[$crate]} " == *" $dependency "* ]] || fail "crates/$crate may not depend on crates/$dependency"
    done
done

# Both hosts compile the same policies: crates/policy takes every header of policy/, and the scheduler reaches each of them.
while read -r header; do
    fail "bpf/microslice.bpf.c doesn't compile $header"
done < <(comm -23 <(ls policy/*.h) <(clang-19 -MM -MG -I policy bpf/microslice.bpf.c | grep -oE 'policy/[a-z_]+\.h' | sort -u))
exit $failed
