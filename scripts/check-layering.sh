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

# Crates: what each may depend on.
declare -A allowed=(
    [border]="" [policy]="border" [symbols]="" [metrics]="" [trace]="" [promises]=""
    [model]="policy metrics" [engine]="model policy metrics symbols trace"
    [experiments]="engine model policy metrics promises" [studies]="experiments engine model policy metrics"
    [host]="border policy symbols metrics trace"
    [testbed]="metrics promises"
    [cli]="policy symbols metrics model engine experiments studies host testbed"
)
for crate in "${!allowed[@]}"; do
    for dependency in $(grep -oE '^microslice-[a-z]+' "crates/$crate/Cargo.toml" | sed 's/microslice-//' | sort -u); do
        [[ " ${allowed[$crate]} " == *" $dependency "* ]] || fail "crates/$crate may not depend on crates/$dependency"
    done
done

# Folders of a crate, in order: each uses only those before it, and those with commas between don't use each
# other.
declare -A folders=(
    [host]="machine shares settings bpf guests output run,beside,observe trial"
)
for crate in "${!folders[@]}"; do
    mapfile -t sources < <(find "crates/$crate/src" -name '*.rs')
    for folder in "crates/$crate/src"/*/; do
        [[ " ${folders[$crate]//,/ } " == *" $(basename "$folder") "* ]] || fail "$folder has no place in the order of crates/$crate"
    done
    # Not by a process substitution, whose failure nothing would notice.
    faults=$(awk -v order="${folders[$crate]}" -f scripts/check-rooms.awk "${sources[@]}")
    while read -r fault; do
        [[ -z $fault ]] || fail "$fault"
    done <<< "$faults"
done

# Both hosts compile the same policies: crates/policy takes every header of policy/, and some scheduler of
# bpf/ reaches each of them.
while read -r header; do
    fail "no scheduler of bpf/schedulers/ compiles $header"
done < <(comm -23 <(ls policy/*.h) <(for scheduler in bpf/schedulers/*.bpf.c; do
    clang-19 -MM -MG -I . -I policy "$scheduler"
done | grep -oE 'policy/[a-z_]+\.h' | sort -u))

# The real scheduler: the core knows no mechanism, mechanisms know no scheduler, and neither goes in circles.
may_include() {
    local folder=$1 allowed=$2 file line include
    while IFS=: read -r file line include; do
        [[ $include =~ \"($allowed)/ ]] || fail "$file:$line: bpf/$folder/ may include only $allowed: $include"
    done < <(grep -nHE '^\s*#\s*include\s*"' bpf/"$folder"/*.[ch])
}
may_include core 'bpf/core|policy'
# What a guest's module and the host share is in the module's folder: that has to be complete in a guest.
mechanisms='bpf/core|bpf/mechanisms|policy|guest/hints'
may_include mechanisms "$mechanisms"
# A request is found to be needed in one room, and served in the other: they meet in request.bpf.h alone.
for room in asking serving; do
    other=$([[ $room == asking ]] && echo serving || echo asking)
    may_include "mechanisms/$room" "$mechanisms"
    if grep -nHE "^#include \"bpf/mechanisms/$other/" bpf/mechanisms/$room/*.h; then
        fail "bpf/mechanisms/$room/ may not include bpf/mechanisms/$other/"
    fi
    if grep -nHE "^#include \"bpf/mechanisms/$room/" bpf/mechanisms/*.h; then
        fail "headers of bpf/mechanisms/ itself may not include bpf/mechanisms/$room/"
    fi
done
if ! circle=$(grep -HoE '^#include "bpf/[^"]+' bpf/{core,mechanisms,mechanisms/*,schedulers}/*.[ch] | sed 's/:#include "/ /' | tsort 2>&1 >/dev/null); then
    fail "headers of bpf/ include each other: $circle"
fi
if grep -nHE '(micro_slice|confined|request|home_slices|lending|delay|patience|woken|passes|pool_size|directed_yield|placement|urgent|urgent_queue)_(of|on|in)\(' bpf/core/*.h; then
    fail "bpf/core/ uses a mechanism's state"
fi
exit $failed
