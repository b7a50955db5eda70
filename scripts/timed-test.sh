#!/usr/bin/env bash
# Cargo's runner for test programs (scripts/test.sh): each test says how long it took, which libtest calls
# unstable.
set -euo pipefail
case $1 in
# On one host, one at a time: a second one would only wait, and count that.
*/deps/behaviours-*) RUSTC_BOOTSTRAP=1 exec "$@" -Zunstable-options --report-time --test-threads=1 ;;
*/deps/*) RUSTC_BOOTSTRAP=1 exec "$@" -Zunstable-options --report-time ;;
*) exec "$@" ;;
esac
