#!/bin/bash
# source.sh PACKAGE -- print the folder with Debian's source of PACKAGE, in exactly the version that is
# installed here. Each version is fetched once and kept outside of the repository, in
# DAFS_SOURCE_CACHE (default ~/.cache/dafs-sources).
#
# Invariants
# * This machine's package lists and sources are left alone, and no privilege is needed: the lists
#   of source packages are read into the cache, from this machine's package mirrors.
# * A folder in the cache is complete: it gets its name when all is done.
set -euo pipefail
cache=${DAFS_SOURCE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dafs-sources}

die() { printf 'source: %s\n' "$*" >&2; exit 1; }

[[ $# == 1 ]] || die "usage: source.sh PACKAGE"
read -r package version < <(dpkg-query -W -f '${source:Package} ${source:Version}\n' "$1" 2>/dev/null) ||
    die "the package $1 is not installed; run: scripts/setup.sh test bench"
source=$cache/$package-$version

# apt-get with lists and sources of its own.
apt() {
    apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        -o Dir::Cache="$work" -o Dir::State::lists="$work/lists" -o Acquire::Languages=none \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources.list.d" "$@"
}

fetch() {
    local tool file
    for tool in apt-get dpkg-source; do
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
        apt --download-only source "$package=$version"
        dpkg-source --no-check -x ./*.dsc source
    ) >"$work/log" 2>&1 || {
        tail "$work/log" >&2
        die "no source of $package $version; is there a way to the network?"
    }
    mv "$work/source" "$source"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[[ -d $source ]] || fetch
echo "$source"
