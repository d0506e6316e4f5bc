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
# * An entry of the cache is complete: it gets its name when all is done.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cache=${FIO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dafs-fio}

die() { printf 'fio: %s\n' "$*" >&2; exit 1; }

version=$(dpkg-query -W -f '${source:Version}' fio 2>/dev/null) || version=
[[ $version ]] || die "the package fio is not installed; run: scripts/setup.sh test"
headers=$cache/$version

make_headers() {
    local tool source
    for tool in make cc; do
        command -v "$tool" >/dev/null || die "there is no $tool; run: scripts/setup.sh test"
    done
    source=$("$here/../scripts/source.sh" fio) || exit 1
    work=$(mktemp -d "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cp -r "$source" "$work/source"
    (cd "$work/source" && ./configure) >"$work/log" 2>&1 || {
        tail "$work/log" >&2
        die "fio's configure failed"
    }
    [[ -s $work/source/config-host.h ]] || die "fio's configure made no config-host.h"
    mv "$work/source" "$headers"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[[ -d $headers ]] || make_headers
echo "$headers"
