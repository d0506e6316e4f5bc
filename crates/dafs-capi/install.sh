#!/bin/bash
# install.sh ARCHIVE PREFIX -- make the shared library from libdafs_capi.a and put it, the header, the
# manual pages and the description for pkg-config below PREFIX.
#
# Invariants
# * Only what the header declares can be linked against, under one version of symbols.
set -euo pipefail
archive=$1 prefix=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")

install -d "$prefix/lib/pkgconfig" "$prefix/include" "$prefix/share/man/man3"
"${CC:-cc}" -shared -o "$prefix/lib/libdafs.so.$version" \
    -Wl,-soname,libdafs.so.1 -Wl,--version-script,"$here/dafs.map" -Wl,--gc-sections -Wl,-z,defs \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
ln -sf "libdafs.so.$version" "$prefix/lib/libdafs.so.1"
ln -sf libdafs.so.1 "$prefix/lib/libdafs.so"
install -m 644 "$here/include/dafs.h" "$prefix/include/dafs.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/dafs.pc.in" \
    >"$prefix/lib/pkgconfig/dafs.pc"
for page in "$here"/man/*.3; do
    install -m 644 "$page" "$prefix/share/man/man3/"
    # Each function under its own name, too.
    sed -n 's/^\.SS \(dap_[a-z_]*\)()$/\1/p' "$page" | while read -r name; do
        echo ".so man3/${page##*/}" >"$prefix/share/man/man3/$name.3"
    done
done
