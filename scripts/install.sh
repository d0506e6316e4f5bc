#!/bin/bash
# install.sh DIRECTORY [BUILD] -- install the command dafs and the library of `dafs run` where they
# find each other below DIRECTORY (/usr/local, say): bin/dafs and lib/dafs/libdafs_preload.so. BUILD
# is cargo's output folder, by default target/release.
#
# Invariants
# * Files are replaced whole, by renaming, so that running programs keep the ones that they have.
set -euo pipefail

die() {
    echo "install: $*" >&2
    exit 1
}
[[ $# == 1 || $# == 2 ]] || die "usage: install.sh DIRECTORY [BUILD]"
directory=$1
build=${2:-$(dirname "${BASH_SOURCE[0]}")/../target/release}
for file in dafs libdafs_preload.so; do
    [[ -f $build/$file ]] || die "there is no $build/$file; build it with: cargo build --release"
done

# put MODE FILE PLACE
put() {
    install -D -m "$1" "$2" "$3.new"
    mv -f "$3.new" "$3"
}
put 755 "$build/dafs" "$directory/bin/dafs"
put 644 "$build/libdafs_preload.so" "$directory/lib/dafs/libdafs_preload.so"
