#!/bin/bash
# headers.sh -- make the headers of the fio that is installed here, out of Debian's source package,
# and print the folder that has them. They are made once for each version, outside of the
# repository, in FIO_CACHE (default ~/.cache/dafs-fio).
#
# An engine shares structures with fio, so its headers must be of exactly the same version. Some
# depend on what fio's configure finds; those that an engine uses do not differ between Debian's
# build and one without optional libraries.
#
# Invariants
# * This machine's package lists and sources are left alone, and no privilege is needed: the lists of
#   source packages are read into the cache, from where this machine has its packages.
# * What is in the cache is complete: it gets its name when all is done.
set -euo pipefail
cache=${FIO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dafs-fio}

die() { printf 'fio: %s\n' "$*" >&2; exit 1; }

version=$(dpkg-query -W -f '${source:Version}' fio 2>/dev/null) || version=
[[ $version ]] || die "the package fio is not installed; run: scripts/setup.sh test"
headers=$cache/$version

# apt-get with lists and sources of its own.
apt() {
    apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        -o Dir::Cache="$work" -o Dir::State::lists="$work/lists" -o Acquire::Languages=none \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources.list.d" "$@"
}

make_headers() {
    local tool file
    for tool in apt-get dpkg-source make cc; do
        command -v "$tool" >/dev/null || die "there is no $tool; run: scripts/setup.sh test"
    done
    work=$(mktemp -d "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work"/{lists,archives}/partial "$work/sources.list.d"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [[ ! -f $file ]] || sed -E -e 's/^deb(-src)?( |\t)/deb-src /' \
            -e 's/^Types:.*/Types: deb-src/' "$file" >"$work/sources.list.d/${file##*/}"
    done
    (
        cd "$work"
        # Not every place that has packages has their sources.
        apt update || echo "apt-get update failed in part"
        apt --download-only source "fio=$version"
        dpkg-source --no-check -x ./*.dsc source
        cd source
        ./configure
    ) >"$work/log" 2>&1 || {
        tail "$work/log" >&2
        die "no source of fio $version; is there a way to the network?"
    }
    [[ -s $work/source/config-host.h ]] || die "fio's configure made no config-host.h"
    mv "$work/source" "$headers"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[[ -d $headers ]] || make_headers
echo "$headers"
