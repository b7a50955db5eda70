#!/usr/bin/env bash
# Installs Debian packages by name: scripts/setup.sh [build|package|demo|tests]
# `build`: what compiling the program needs. Besides: `package`, what making a Debian package of it needs;
# `demo` (the default), what an emulated host needs; `tests`, what tests and `make check` need. Safe to run
# again: a package that is there is not touched. Runs as root on Debian 12.
set -euo pipefail
# One at a time, also under `make -j`: a second apt-get would find dpkg's lock taken.
exec {lock}< "$0"
flock "$lock"

build=(
    clang-19                           # the BPF programs and the native build of policy/
    libclang1-19                       # crates/border, by which Rust reads C headers
    gcc libc6-dev linux-libc-dev       # static programs that run inside hosts and guests
    make pkg-config autoconf automake autopoint bison flex gawk gettext libtool patch   # libbpf and libelf
)
demo=(
    dpkg-dev xz-utils zstd kmod        # unpacking stock kernels and their modules
    debian-archive-keyring             # checks what the testbed downloads
)
package=(
    debhelper                          # the Debian package
)
tests=(
    clang-format-19 llvm-19            # formats C, and takes objects apart
    g++                                # libFuzzer is built from source
    python3-venv                       # vmlinux-to-elf, which symbols are compared with
    slurmctld slurmd slurm-client munge   # a cluster of one machine, which tests start and end
    libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86   # tests' own libvirtd
    lintian                            # checks the Debian package
    mmdebstrap e2fsprogs               # the testbed's host with systemd, in which the package is installed
    nodejs                             # runs Perfetto's trace processor, which tests ask about traces
    chromium                           # draws the pages that tests look at
    tmux                               # a terminal that tests look at
    prometheus                         # scrapes tests and checks rules; its service stays off (below)
    libelf-dev libseccomp-dev          # with them cargo builds the peers of `microslice testbed peers`
)
case ${1:-demo} in
build) packages=("${build[@]}") ;;
package) packages=("${build[@]}" "${package[@]}") ;;
demo) packages=("${build[@]}" "${demo[@]}") ;;
tests) packages=("${build[@]}" "${package[@]}" "${demo[@]}" "${tests[@]}") ;;
*) echo "setup: $1: none of build, package, demo, tests" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

((EUID == 0)) || { echo "setup: run as root to install: ${missing[*]}" >&2; exit 2; }
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Packages start the services that they bring, and those of tools for tests have no business on this machine.
# So none is started while this installs, nor by the next boot. `systemctl enable --now prometheus` is left to
# its user.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for service in munge slurmctld slurmd prometheus; do
    [[ " ${missing[*]} " == *" $service "* ]] || continue
    update-rc.d "$service" disable || true # it says why
done
