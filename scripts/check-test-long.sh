#!/usr/bin/env bash
# Says how many behaviours of the testbed have passed since bpf/ and policy/ changed by more than 25 lines.
# Part of `make check`. It is no failure, since running them takes hours. scripts/test.sh writes
# testbed/behaviours.tsv: name, verdict, seconds, commit, date.
set -euo pipefail
cd "$(dirname "$0")/.."
record=testbed/behaviours.tsv
allowed_lines=25
count=$(grep -rh '^#\[test\]' crates/testbed/tests/behaviours | wc -l)
passed=0
declare -A changed
while IFS=$'\t' read -r name verdict _ commit date; do
    # One that the tree doesn't have any more says nothing.
    grep -rqE "^fn ${name##*::}\(" crates/testbed/tests/behaviours || continue
    if [[ $verdict != ok ]]; then
        echo "behaviours: $name failed at $commit ($date)"
        continue
    fi
    if [[ -z ${changed[$commit]:-} ]]; then
        # A commit that this clone doesn't have says nothing of today's code.
        changed[$commit]=$(git diff --numstat "$commit" -- bpf policy 2>/dev/null | awk '{ lines += $1 + $2 } END { print lines + 0 }') ||
            changed[$commit]=unknown
        git cat-file -e "$commit^{commit}" 2>/dev/null || changed[$commit]=unknown
    fi
    if [[ ${changed[$commit]} != unknown ]] && ((changed[$commit] <= allowed_lines)); then passed=$((passed + 1)); fi
done < <(cat "$record" 2>/dev/null || true)
echo "behaviours: $passed of $count passed since bpf/ and policy/ changed by more than $allowed_lines lines; make test-long runs all"
