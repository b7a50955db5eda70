#!/usr/bin/env bash
# Builds the pages as one site with search, in target/book. What lies outside of docs/ is linked in the
# repository.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v mdbook > /dev/null || { echo "book: mdbook is missing: cargo install mdbook" >&2; exit 2; }
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -r book.toml docs "$stage"
sed -Ei "s#\]\(\.\./#](${repository}/blob/main/#g" "$stage"/docs/*.md
sed -Ei "s#\]\(\.\./\.\./#](${repository}/blob/main/#g" "$stage"/docs/*/*.md
mdbook build --dest-dir "$PWD/target/book" "$stage"
