#!/usr/bin/env bash
# Makes the Debian package of a built program: scripts/deb.sh [PROGRAM] [DIRECTORY]
# PROGRAM: target/release/microslice; DIRECTORY, where the package goes: target/debian.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-${CARGO_TARGET_DIR:-target}/release/microslice}
directory=${2:-${CARGO_TARGET_DIR:-target}/debian}

for tool in dh dpkg-buildpackage; do
    command -v "$tool" > /dev/null || { echo "deb: $tool is missing: make setup-package" >&2; exit 2; }
done
[[ -x $program ]] || { echo "deb: $program: no program; make build" >&2; exit 2; }
version=$("$program" --version)
version=${version##* }

mkdir -p "$directory"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
source="$stage/microslice-$version"
mkdir "$source" "$source/completions"
cp "$program" "$source/microslice"
cp -r packaging/debian packaging/grafana packaging/prometheus critical scenarios docs README.md CHANGELOG.md "$source"
# What was measured where is for developers, as what lies outside of the pages: links lead to the repository.
rm -r "$source/docs/lab" "$source/docs/SUMMARY.md"
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
find "$source/docs" "$source/CHANGELOG.md" -name '*.md' -exec sed -Ei "s#\]\((\.\./|docs/)?lab/#](${repository}/blob/main/docs/lab/#g" {} +
# Debian's name of the upstream changelog.
sed -i 's#](CHANGELOG\.md)#](changelog.gz)#' "$source/README.md"
sed -Ei "s#\]\((SECURITY|CONTRIBUTING)\.md#](${repository}/blob/main/\1.md#g" "$source/README.md"
find "$source/docs" -name '*.md' -exec sed -Ei "s#\]\(\.\./\.\./critical/#](${repository}/blob/main/critical/#g" {} +
cp packaging/microslice.toml "$source"
cp packaging/microslice.service "$source/debian/microslice.service"
for kind in socket service; do
    cp "packaging/microslice-metrics.$kind" "$source/debian/microslice.microslice-metrics.$kind"
done
"$program" manual "$source/man"
"$program" completions bash > "$source/completions/microslice"
"$program" completions zsh > "$source/completions/_microslice"
"$program" completions fish > "$source/completions/microslice.fish"
# Of the last commit: one commit makes one package.
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
printf 'microslice (%s-1) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$(sed -n 's/^Maintainer: //p' packaging/debian/control)" "$date" > "$source/debian/changelog"
log="$directory/build.log"
if ! (cd "$source" && SOURCE_DATE_EPOCH=$(date -d "$date" +%s) dpkg-buildpackage -b -us -uc) > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "deb: dpkg-buildpackage failed; all it said: $log" >&2
    exit 1
fi
mv "$stage"/microslice*.deb "$stage"/microslice*.changes "$directory"
echo "$directory/$(cd "$directory" && echo "microslice_${version}-1_amd64.deb")"
