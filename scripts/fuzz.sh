#!/usr/bin/env bash
# Fuzzes every parser for some seconds each, starting from the corpus: scripts/fuzz.sh [SECONDS [TARGET…]] The
# targets are cargo-fuzz's (fuzz/); this drives them on the stable compiler, so that `make soak` needs
# neither nightly nor cargo-fuzz. What breaks one is written to fuzz/artifacts/TARGET/ and named.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-5}
targets=("${@:2}")
((${#targets[@]})) || mapfile -t targets < <(cd fuzz_targets && ls -- *.rs | sed 's/\.rs$//')

# What cargo-fuzz passes, without the sanitizer (nightly only; the crates have no unsafe code of their own).
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
target_directory=${CARGO_TARGET_DIR:-target}/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
# With a target triple, build scripts and macros stay without counters.
cargo build --quiet --release --locked --target "$triple" --target-dir "$target_directory"

fuzz() {
    local target=$1 found log result=0
    mkdir -p "artifacts/$target" "corpus/$target"
    found=$(mktemp -d)
    log=$(mktemp)
    # New inputs go to a scratch folder: a check doesn't change the tree.
    if "$target_directory/$triple/release/$target" "$found" "corpus/$target" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 -max_len=65536 -verbosity=1 -artifact_prefix="artifacts/$target/" >"$log" 2>&1; then
        echo "fuzz: $target: $(grep -oE 'Done [0-9]+ runs' "$log" | tail -n 1), nothing found"
    else
        result=1
        echo "fuzz: $target: FAILED" >&2
        tail -n 30 "$log" >&2
    fi
    rm -rf "$found" "$log"
    return "$result"
}

# As many at once as there are processors.
failed=0
for target in "${targets[@]}"; do
    while (($(jobs -rp | wc -l) >= $(nproc))); do
        wait -n || failed=1
    done
    fuzz "$target" &
done
while [[ -n $(jobs -p) ]]; do
    wait -n || failed=1
done
exit "$failed"
