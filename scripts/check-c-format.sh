#!/usr/bin/env bash
# C sources are formatted by clang-format with the project's style.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files 'policy/*.[ch]' 'bpf/*.[ch]' 'testbed/*.[ch]' 'guest/*.[ch]' | grep -v 'vmlinux' || true)
((${#sources[@]} == 0)) || clang-format-19 --dry-run --Werror "${sources[@]}"
