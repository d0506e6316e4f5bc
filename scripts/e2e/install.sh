#!/bin/bash
# The installation: below a folder for packages and below a prefix of a user's own, the command finds its library,
# programs are compiled and run, symbols are in files of their own, and nothing is left when all is removed.
source "$(dirname "$0")/lib.sh"
needs_preload

target=${DAFS_TARGET:-$PWD/target/debug}
[[ -f $target/libdafs_capi.a ]] || cargo build --locked --quiet -p dafs-capi || fail "the C library cannot be built"
for tool in cc pkg-config readelf objcopy; do
    command -v "$tool" >/dev/null || skip "there is no $tool; install it with: scripts/setup.sh build"
done
unset DAFS_PRELOAD_LIBRARY PREFIX DESTDIR LIBDIR FIODIR UNITDIR DOCDIR ZSHDIR SBINDIR DEBUGDIR STRIP RECORD ARCHIVE
export BUILD=$target

step "below a folder for packages"
root=$work/root
PREFIX=/usr DESTDIR=$root scripts/install.sh program library development units documents
for file in bin/dafs sbin/mount.dafs share/man/man8/mount.dafs.8 lib/dafs/libdafs_preload.so lib/libdafs.so.1 include/dafs.h lib/pkgconfig/dafs.pc \
    share/man/man1/dafs.1 share/man/man1/dafs-cluster-add.1 share/man/man5/dafs.toml.5 \
    share/bash-completion/completions/dafs share/zsh/site-functions/_dafs \
    share/fish/vendor_completions.d/dafs.fish share/man/man3/dafs.3 share/man/man3/dap_read.3 share/doc/dafs/LICENSE share/doc/dafs/docs/serving.md share/doc/dafs/docs/pictures/page.png \
    share/doc/dafs/examples/hello.c share/doc/dafs/examples/dafs.toml \
    lib/systemd/system/dafs.service lib/systemd/system/dafs-data@.service lib/systemd/system/dafs-mount@.service; do
    [[ -e $root/usr/$file ]] || fail "there is no $file"
done
! grep -rF -e "$root" -e /usr/local "$root/usr/lib/pkgconfig" "$root/usr/lib/systemd" "$root/usr/sbin" || fail "a file names the folder for packages"
grep -F 'ExecStart=/usr/bin/dafs ' "$root/usr/lib/systemd/system/dafs.service" >/dev/null ||
    fail "the unit starts another program"
mkdir "$work/tree"
echo content >"$work/tree/file"
serve "$work/tree" ${squash[@]+"${squash[@]}"}
[[ $("$root/usr/bin/dafs" cat "$url/file") == content ]] || fail "the command does not work"
[[ $(timeout 120 "$root/usr/bin/dafs" run --at "/data=$url" cat /data/file) == content ]] ||
    fail "the command does not find its library"

step "symbols in files of their own"
for file in bin/dafs lib/dafs/libdafs_preload.so lib/libdafs.so.1; do
    sections=$(readelf -SW "$root/usr/$file")
    ! grep -E '\.(symtab|debug_line)' <<<"$sections" >/dev/null || fail "$file has symbols for debuggers"
    id=$(LC_ALL=C readelf -n "$root/usr/$file" | sed -n 's/^ *Build ID: //p')
    sections=$(readelf -SW "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug") || fail "$file: no symbols"
    grep -E '\.symtab' <<<"$sections" >/dev/null || fail "the symbols of $file are missing"
done

step "a program in C"
mkdir "$work/pkg"
PREFIX=$work/own scripts/install.sh library development
# shellcheck disable=SC2046
PKG_CONFIG_PATH=$work/own/lib/pkgconfig bash -euc \
    'cc -o "$1" crates/dafs-capi/examples/hello.c $(pkg-config --cflags --libs dafs)' bash "$work/pkg/hello" ||
    fail "the example does not compile"
LD_LIBRARY_PATH=$work/own/lib timeout 60 "$work/pkg/hello" "$url" >"$work/said" 2>&1 ||
    { cat "$work/said"; fail "the example does not run"; }

step "again, over a running program"
"$root/usr/bin/dafs" serve "$work/tree" --listen 127.0.0.1:0 --state-directory "$work/other" >"$work/ready" 2>"$work/log" &
old=$!
started+=("$old")
is_ready() { grep '^ready ' "$work/ready" >/dev/null; }
eventually is_ready
PREFIX=/usr DESTDIR=$root scripts/install.sh program
"$dafs" ls "$(sed -n 's/^ready //p' "$work/ready")" >/dev/null || fail "the running program was hurt"
kill -TERM "$old"
wait "$old" || fail "the running program ended with status $?"
forget_process "$old"

step "removed"
touch "$root/usr/share/doc/other"
PREFIX=/usr DESTDIR=$root scripts/install.sh --uninstall
[[ $(find "$root" ! -type d) == "$root/usr/share/doc/other" ]] || fail "these are left: $(find "$root" ! -type d)"
[[ ! -e $root/usr/bin && ! -e $root/usr/share/dafs ]] || fail "empty folders are left"
PREFIX=$work/own scripts/install.sh --uninstall
[[ ! -e $work/own ]] || fail "these are left: $(find "$work/own")"
expect 1 'has installed nothing' env PREFIX="$work/own" scripts/install.sh --uninstall

step "mistakes"
expect 1 'write an absolute path' env PREFIX=own scripts/install.sh program
expect 1 'there is no part programs' env PREFIX="$work/own" scripts/install.sh programs
expect 1 'cargo build --release' env PREFIX="$work/own" BUILD="$work" scripts/install.sh program
stop_server
