#!/bin/bash
# setup.sh PART... -- install what PART needs on Debian 12 or 13. Parts: run, build, format, lint, deb, test, lab, bench.
#
# Invariants
# * Only missing packages are installed, by name, without merely recommended ones. If none is
#   missing, this takes well under a second and needs no privilege and no network.
# * A compiler that is new enough is left alone, wherever it comes from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
source scripts/env.sh

die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

is_installed() {
    [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == 'install ok installed' ]]
}

# The package lists are read once, and only when something must be installed.
lists_are_fresh=
refresh_lists() {
    [[ -z $lists_are_fresh ]] || return 0
    lists_are_fresh=1
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
        echo "setup: apt-get update failed in part; going on with what there is" >&2
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif command -v sudo >/dev/null; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        die "this needs root, and there is no sudo. As root, run:" "    $*"
    fi
}

install_packages() {
    local package missing=()
    command -v dpkg-query >/dev/null ||
        die "this is no Debian; install what matches these packages, then go on with cargo:" \
            "    $*"
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    [[ ${#missing[@]} != 0 ]] || return 0
    echo "setup: installing ${missing[*]}" >&2
    refresh_lists
    # A bare Debian has no apt-utils, and nothing here asks questions that those would bring forward.
    as_root apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
        install --no-install-recommends "${missing[@]}" \
        >/dev/null 2> >(grep -v '^debconf: delaying package configuration, since apt-utils' >&2) ||
        die "apt-get could not install: ${missing[*]}"
}

# Runs `install_packages PACKAGE...` so that no service of the new packages runs, now or after the next boot.
without_starting_services() {
    local policy=/usr/sbin/policy-rc.d package absent='' before unit
    for package in "${@:2}"; do
        is_installed "$package" || absent=$package
    done
    [[ $absent ]] || return 0
    before=$(units_of_boot)
    # Debian's packages ask this program whether a service may start.
    if [[ -e $policy ]]; then
        "$@"
    else
        as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
        "$@"
        as_root rm -f "$policy"
        trap - EXIT
    fi
    command -v systemctl >/dev/null || return 0
    for unit in $(comm -13 <(echo "$before") <(units_of_boot)); do
        as_root systemctl --quiet disable "$unit" >/dev/null 2>&1 ||
            echo "setup: $unit will start at the next boot; to prevent it: systemctl disable $unit" >&2
    done
}

# The units that systemd starts at boot, sorted.
units_of_boot() {
    [[ -d /etc/systemd/system ]] || return 0
    find /etc/systemd/system -path '*.wants/*' -type l -printf '%f\n' 2>/dev/null | sort -u
}

# The version that apt would install of package $1, without epoch and Debian's suffix.
candidate_version() {
    apt-cache policy "$1" 2>/dev/null |
        sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/p'
}

# Debian has the compiler under two names: `rustc` is as old as the release, `rustc-web` follows
# the web browsers. Where neither is new enough, its rustup package fetches the stable one.
install_rust() {
    local wanted rustc packages
    wanted=$(rust_version_wanted)
    ! rust_is_ready || return 0
    refresh_lists
    for packages in "rustc cargo" "rustc-web cargo-web"; do
        rustc=${packages%% *}
        [[ $(candidate_version "$rustc") ]] || continue
        if version_at_least "$(candidate_version "$rustc")" "$wanted"; then
            # shellcheck disable=SC2086
            install_packages $packages
            hash -r
            ! rust_is_ready || return 0
        fi
    done
    if [[ $(candidate_version rustup) ]]; then
        install_packages rustup
        rustup toolchain install stable --profile minimal >&2 ||
            die "rustup could not fetch the stable toolchain; is there a way to the network?"
        rustup default >/dev/null 2>&1 || rustup default stable >&2
        hash -r
        ! rust_is_ready || return 0
    fi
    die "no Rust compiler of version $wanted or newer:" \
        "found $(rustc --version 2>/dev/null || echo none)." \
        "Install one from https://rustup.rs (\`rustup update stable\` if you have rustup) and" \
        "run this again; ~/.cargo/bin need not be in PATH."
}

# Formatter and lints come from where the compiler does, or not at all; the tests report them when missing.
install_rust_tools() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    if command -v rustup >/dev/null; then
        rustup component add rustfmt clippy >&2 || echo "setup: no rustfmt or clippy" >&2
    elif [[ $(command -v rustc) == /usr/bin/rustc ]]; then
        if is_installed rustc-web; then
            install_packages rustfmt-web rust-web-clippy
        elif is_installed rustc; then
            install_packages rustfmt rust-clippy
        fi
    fi
}

# Building the guest downloads packages by today's lists, as an ordinary user.
refresh_lists_for_guest() {
    [[ ! -s ${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dafs-lab}/kernel ]] || return 0
    [[ -z $(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mmin -1440 2>/dev/null) ]] ||
        return 0
    refresh_lists
}

[[ $# -gt 0 ]] || die "usage: setup.sh PART...   (run, build, format, lint, deb, test, lab, bench)"
for part in "$@"; do
    case $part in
    run)
        install_packages ca-certificates gcc libc6-dev
        install_rust
        ;;
    build)
        install_packages ca-certificates gcc g++ make pkg-config libc6-dev
        install_rust
        ;;
    format)
        install_packages ca-certificates
        install_rust
        install_rust_tools
        ;;
    lint)
        install_packages git python3 shellcheck
        install_rust_tools
        ;;
    deb)
        install_packages debhelper dh-python dpkg-dev fio lintian python3
        ;;
    test)
        install_packages chromium curl db5.3-util debhelper debootstrap dh-python dpkg-dev e2fsprogs ethtool fio fish fuse3 git groff iproute2 libdb5.3-dev libnfs-utils \
            lintian libsqlite3-dev mount procps python3 python3-venv rsync shellcheck sqlite3 systemd tshark util-linux valgrind xfsprogs zsh
        # Debian's torch is 150 MB with all it needs; pip's wheels are gigabytes.
        install_packages python3-numpy python3-pytest python3-torch
        without_starting_services install_packages postgresql prometheus rpcbind
        # A file system of its own for the tests of the CephFS store, which start it themselves.
        without_starting_services install_packages ceph-common ceph-mon ceph-osd libcephfs2 ceph-mds
        # The same for the GlusterFS store.
        without_starting_services install_packages libgfapi0 glusterfs-server
        # A Kerberos realm for the tests of contexts, which start its KDC themselves.
        without_starting_services install_packages krb5-admin-server krb5-user libgssapi-krb5-2 krb5-kdc
        install_rust_tools
        ;;
    bench)
        # The server to compare with, and the client library that drives both. Installing a server
        # would start it otherwise.
        without_starting_services install_packages db5.3-util dpkg-dev e2fsprogs ethtool fio fuse3 \
            git iproute2 libdb5.3-dev libfuse3-dev libkrb5-dev libnfs-dev libnfs-utils mount nfs-ganesha nfs-ganesha-vfs postgresql python3 \
            python3-venv rpcbind rsync sqlite3 util-linux zlib1g-dev
        # A Kerberos realm, whose KDC the benchmark starts itself.
        without_starting_services install_packages krb5-admin-server krb5-user libgssapi-krb5-2 krb5-kdc
        # The file system of the comparison of Direct-pNFS, which starts it itself.
        without_starting_services install_packages ceph-common ceph-mon ceph-osd libcephfs2 ceph-mds
        ;;
    lab)
        install_packages attr bc bison cpio fio flex gcc git iproute2 libc6-dev libibverbs-dev \
            librdmacm-dev make sqlite3 tar tshark util-linux xz-utils
        refresh_lists_for_guest
        ;;
    *) die "no part named $part; there are: run, build, format, lint, deb, test, lab, bench" ;;
    esac
done
