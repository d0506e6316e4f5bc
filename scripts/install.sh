#!/bin/bash
# install.sh [PART...] -- install what cargo has built; `make install` and the Debian packages call it.
# install.sh --uninstall -- remove what it has installed below PREFIX.
#
#     program      the command dafs, the library of `dafs run`, mount.dafs, manual pages, completions for shells, an
#                  example of a configuration, the licence
#     library      the C library libdafs.so
#     development  its header, its description for pkg-config, its manual pages and examples
#     fio          the engine for the fio of this host, and job files; needs `library` and `development`
#     units        units for systemd
#     documents    the pages of docs/
#     python       the Python package, for packages of a distribution; users have pip
#
# Without a PART it installs all but `python`. It leaves `fio` out, and says so, where this host has no fio or none of its
# headers.
#
# The environment has, with these defaults:
#
#     PREFIX=/usr/local  DESTDIR=              files go below DESTDIR, and find each other as if it were /
#     BUILD=target/release                     cargo's output folder
#     ARCHIVE=BUILD/libdafs_capi.a             the C library as cargo has built it
#     LIBDIR=PREFIX/lib  FIODIR=LIBDIR  UNITDIR=PREFIX/lib/systemd/system  DOCDIR=PREFIX/share/doc/dafs
#     ZSHDIR=PREFIX/share/zsh/site-functions  PYTHONDIR=PREFIX/lib/python3/dist-packages
#     SBINDIR=/usr/sbin for the prefixes /usr and /usr/local, because mount(8) looks there alone, else PREFIX/sbin
#     STRIP=yes                                no: the symbols for debuggers stay in the files
#     DEBUGDIR=/usr/lib/debug for the prefix /usr, else PREFIX/lib/debug
#     RECORD=yes                               no: --uninstall will know nothing of this
#
# Invariants
# * Files are replaced whole, by renaming, so that running programs keep the ones that they have.
# * --uninstall removes the files that were installed, and the folders that were made for them once they are
#   empty. It touches nothing else.
# * The C library exports the functions of its header alone, under one version of symbols.
# * The engine for fio finds the library beside itself, wherever both are moved to.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    echo "install: $*" >&2
    exit 1
}

prefix=${PREFIX:-/usr/local} destdir=${DESTDIR:-}
[[ $prefix == /* && $prefix != / && $prefix != */ ]] || die "PREFIX=$prefix: write an absolute path without a slash at its end"
[[ ! $destdir || $destdir == /* ]] || die "DESTDIR=$destdir: write an absolute path"
destdir=${destdir%/}
build=${BUILD:-${CARGO_TARGET_DIR:-$here/target}/release}
archive=${ARCHIVE:-$build/libdafs_capi.a}
libdir=${LIBDIR:-$prefix/lib}
fiodir=${FIODIR:-$libdir}
unitdir=${UNITDIR:-$prefix/lib/systemd/system}
docdir=${DOCDIR:-$prefix/share/doc/dafs}
zshdir=${ZSHDIR:-$prefix/share/zsh/site-functions}
pythondir=${PYTHONDIR:-$prefix/lib/python3/dist-packages}
sbindir=$prefix/sbin
[[ $prefix != /usr && $prefix != /usr/local ]] || sbindir=/usr/sbin
sbindir=${SBINDIR:-$sbindir}
debugdir=$prefix/lib/debug
[[ $prefix != /usr ]] || debugdir=/usr/lib/debug
debugdir=${DEBUGDIR:-$debugdir}
record=$destdir$prefix/share/dafs/installed
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-install.XXXXXX")
installed=()
# The files of an interrupted run can be removed, too.
finish() {
    if [[ ${RECORD:-yes} == yes && ${#installed[@]} != 0 ]]; then
        folder "$prefix/share/dafs"
        { [[ ! -e $record ]] || cat "$record"; printf '%s\n' "${installed[@]}"; } | LC_ALL=C sort -u >"$record.new"
        mv -f "$record.new" "$record"
    fi
    rm -rf "$work"
}
trap finish EXIT

uninstall() {
    local path paths
    [[ -e $record ]] || die "there is no $record: this script has installed nothing below $prefix"
    # The longer paths come first, so that a folder is empty by its turn unless others use it.
    mapfile -t paths < <(LC_ALL=C sort -r "$record")
    for path in "${paths[@]}"; do
        [[ $path == /* && $path/ != */../* ]] || die "$record is damaged: $path"
    done
    rm -f "$record"
    for path in "${paths[@]}"; do
        case $path in
        */) rmdir --ignore-fail-on-non-empty "$destdir$path" 2>/dev/null || true ;;
        *) rm -f "$destdir$path" ;;
        esac
    done
}

# Makes a folder and those above it, and notes which of them are new.
folder() {
    [[ ! -d $destdir$1 ]] || return 0
    if [[ $1 == / || ! $1 ]]; then
        mkdir -p "$destdir"
        return
    fi
    folder "$(dirname "$1")"
    install -d -m 755 "$destdir$1"
    installed+=("$1/")
}

# put MODE FILE PLACE
put() {
    folder "$(dirname "$3")"
    install -m "$1" "$2" "$destdir$3.new"
    mv -f "$destdir$3.new" "$destdir$3"
    installed+=("$3")
}

# link TEXT PLACE
link() {
    folder "$(dirname "$2")"
    ln -sfn "$1" "$destdir$2"
    installed+=("$2")
}

# binary MODE FILE PLACE -- the same as put, with the symbols for debuggers in a file of their own.
binary() {
    local id stripped=$work/stripped
    if [[ ${STRIP:-yes} != yes ]]; then
        put "$@"
        return
    fi
    id=$(LC_ALL=C readelf -n "$2" | sed -n 's/^ *Build ID: \([0-9a-f]\{4,\}\)$/\1/p')
    [[ $id ]] || die "$2 has no build id, by which debuggers find its symbols; link with --build-id, or use STRIP=no"
    objcopy --only-keep-debug --compress-debug-sections "$2" "$work/symbols"
    objcopy --strip-unneeded "$2" "$stripped"
    put "$1" "$stripped" "$3"
    put 644 "$work/symbols" "$debugdir/.build-id/${id:0:2}/${id:2}.debug"
}

# built FILE COMMAND -- dies if cargo has not built the file with that command.
built() {
    [[ -f $1 ]] || die "there is no $1; build it with: $2"
}

install_program() {
    local page
    built "$build/dafs" 'cargo build --release -p dafs -p dafs-preload'
    built "$build/libdafs_preload.so" 'cargo build --release -p dafs -p dafs-preload'
    binary 755 "$build/dafs" "$prefix/bin/dafs"
    # The command looks for it in ../lib/dafs from its own folder.
    binary 644 "$build/libdafs_preload.so" "$prefix/lib/dafs/libdafs_preload.so"
    put 644 "$here/LICENSE" "$docdir/LICENSE"
    sed "s|/usr/local/bin/|$prefix/bin/|" "$here/packaging/mount.dafs" >"$work/mount.dafs"
    put 755 "$work/mount.dafs" "$sbindir/mount.dafs"
    put 644 "$here/packaging/mount.dafs.8" "$prefix/share/man/man8/mount.dafs.8"
    # The program has its manual and its completions itself, so it runs here once.
    mkdir -p "$work/manual"
    "$build/dafs" manual "$work/manual"
    for page in "$work"/manual/*; do
        put 644 "$page" "$prefix/share/man/man${page##*.}/${page##*/}"
    done
    "$build/dafs" config init - >"$work/example"
    put 644 "$work/example" "$docdir/examples/dafs.toml"
    completions bash "$prefix/share/bash-completion/completions/dafs"
    completions zsh "$zshdir/_dafs"
    completions fish "$prefix/share/fish/vendor_completions.d/dafs.fish"
}

# completions SHELL PLACE
completions() {
    "$build/dafs" completions "$1" >"$work/completions"
    put 644 "$work/completions" "$2"
}

install_library() {
    local name=libdafs.so.1.$version
    built "$archive" 'cargo build --release -p dafs-capi'
    "${CC:-cc}" -shared -o "$work/$name" \
        -Wl,-soname,libdafs.so.1 -Wl,--version-script,"$here/crates/dafs-capi/dafs.map" \
        -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
    binary 644 "$work/$name" "$libdir/$name"
    link "$name" "$libdir/libdafs.so.1"
}

install_development() {
    local page name capi=$here/crates/dafs-capi
    link libdafs.so.1 "$libdir/libdafs.so"
    put 644 "$capi/include/dafs.h" "$prefix/include/dafs.h"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|${libdir/#$prefix/\$\{prefix\}}|" \
        -e "s|@VERSION@|$version|" "$capi/dafs.pc.in" >"$work/dafs.pc"
    put 644 "$work/dafs.pc" "$libdir/pkgconfig/dafs.pc"
    for page in "$capi"/man/*.3; do
        put 644 "$page" "$prefix/share/man/man3/${page##*/}"
        # Each function under its own name, too.
        for name in $(sed -n 's/^\.SS \(dap_[a-z_]*\)()$/\1/p' "$page"); do
            echo ".so man3/${page##*/}" >"$work/page"
            put 644 "$work/page" "$prefix/share/man/man3/$name.3"
        done
    done
    for page in "$capi"/examples/*.c; do
        put 644 "$page" "$docdir/examples/${page##*/}"
    done
}

# An engine shares structures with fio, so it fits the fio that is installed here and no other.
install_fio() {
    local headers job search=()
    [[ -e $destdir$libdir/libdafs.so && -e $destdir$prefix/include/dafs.h ]] ||
        die "there is no libdafs below $destdir$prefix; install the parts library and development, too"
    headers=$("$here/fio/headers.sh")
    [[ $fiodir != "$libdir" || $prefix == /usr ]] || search=(-Wl,-rpath,'$ORIGIN')
    # fio unloads engines; threads of the library are not to lose their code (nodelete).
    (
        cd "$here/fio"
        "${CC:-cc}" -std=gnu11 -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -fPIC -shared \
            -fvisibility=hidden -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
            -include "$headers/config-host.h" -isystem "$headers" -I"$destdir$prefix/include" \
            -o "$work/libdafs_fio.so" {engine,files,memory,transfer}.c \
            -L"$destdir$libdir" -ldafs -lpthread ${search[@]+"${search[@]}"} \
            -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now
    )
    binary 644 "$work/libdafs_fio.so" "$fiodir/libdafs_fio.so"
    for job in "$here"/fio/jobs/*.fio; do
        put 644 "$job" "$prefix/share/dafs/fio/${job##*/}"
    done
}

install_units() {
    local unit
    for unit in "$here"/packaging/*.{service,socket}; do
        sed "s|/usr/local/bin/|$prefix/bin/|" "$unit" >"$work/unit"
        put 644 "$work/unit" "$unitdir/${unit##*/}"
    done
}

install_documents() {
    local page
    for page in README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md ARCHITECTURE.md; do
        put 644 "$here/$page" "$docdir/$page"
    done
    for page in "$here"/docs/*.md "$here"/docs/design/*.md "$here"/docs/{figures/*.svg,pictures/*.png}; do
        put 644 "$page" "$docdir/docs/${page#"$here"/docs/}"
    done
}

# The same files as the wheel that maturin makes has, in the places where a distribution has them.
install_python() {
    local file python=$here/crates/dafs-python
    local information=$pythondir/dafs-$version.dist-info
    built "$build/lib_dafs.so" 'cargo build --release -p dafs-python'
    binary 644 "$build/lib_dafs.so" "$pythondir/dafs/_dafs.abi3.so"
    for file in "$python"/python/dafs/*.py "$python"/python/dafs/*.pyi "$python"/python/dafs/py.typed; do
        put 644 "$file" "$pythondir/dafs/${file##*/}"
    done
    {
        printf 'Metadata-Version: 2.1\nName: dafs\nVersion: %s\n' "$version"
        sed -n 's/^description = "\(.*\)"$/Summary: \1/p; s/^license = "\(.*\)"$/License: \1/p
            s/^requires-python = "\(.*\)"$/Requires-Python: \1/p' "$python/pyproject.toml"
    } >"$work/METADATA"
    put 644 "$work/METADATA" "$information/METADATA"
    {
        echo '[fsspec.specs]'
        sed -n '/^\[project\.entry-points\."fsspec\.specs"\]$/,/^$/s/^\(dafs\) = "\(.*\)"$/\1 = \2/p' \
            "$python/pyproject.toml"
    } >"$work/entry_points"
    put 644 "$work/entry_points" "$information/entry_points.txt"
}

parts=(program library development units documents)
case ${1:-} in
--uninstall)
    [[ $# == 1 ]] || die "usage: install.sh --uninstall"
    uninstall
    exit
    ;;
-*) die "usage: install.sh [PART...], install.sh --uninstall; the head of the script has the parts" ;;
'')
    # The others do not depend on it, so it comes last and may fail.
    if said=$("$here/fio/headers.sh" 2>&1 >/dev/null); then
        parts+=(fio)
    else
        echo "install: without the engine for fio: $(tail -n 1 <<<"$said")" >&2
    fi
    ;;
*) parts=("$@") ;;
esac
for part in "${parts[@]}"; do
    case $part in
    program | library | development | fio | units | documents | python) "install_$part" ;;
    *) die "there is no part $part; there are: program library development fio units documents python" ;;
    esac
done
