#!/bin/bash
# install.sh PREFIX -- build the engine for the fio that is installed here, and put it beside the
# libdafs.so that crates/dafs-capi/install.sh has put below PREFIX, and its job files into
# PREFIX/share/dafs/fio.
#
# Invariants
# * The engine finds the library beside itself, wherever both are moved to.
set -euo pipefail
prefix=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -e $prefix/lib/libdafs.so && -e $prefix/include/dafs.h ]] || {
    echo "there is no libdafs below $prefix; run crates/dafs-capi/install.sh first" >&2
    exit 1
}
headers=$("$here/headers.sh")

install -d "$prefix/share/dafs/fio"
prefix=$(cd "$prefix" && pwd)
cd "$here"
# fio unloads engines; threads of the library are not to lose their code (nodelete).
"${CC:-cc}" -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -fPIC -shared \
    -fvisibility=hidden -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
    -include "$headers/config-host.h" -isystem "$headers" -I"$prefix/include" \
    -o "$prefix/lib/libdafs_fio.so" {engine,files,memory,transfer}.c \
    -L"$prefix/lib" -ldafs -lpthread -Wl,-rpath,'$ORIGIN' -Wl,-z,nodelete
install -m 644 jobs/*.fio "$prefix/share/dafs/fio/"
