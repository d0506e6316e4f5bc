#!/bin/bash
# The C library as installed: pkg-config finds it, its manual pages can be read, and its examples
# and test programs run clean under valgrind and with the address sanitizer, without leaks.
source "$(dirname "$0")/lib.sh"

archive=${DAFS_TARGET:-$PWD/target/debug}/libdafs_capi.a
[[ -f $archive ]] || cargo build --locked --quiet -p dafs-capi || fail "the library cannot be built"
command -v cc >/dev/null || skip "there is no C compiler"
command -v pkg-config >/dev/null || skip "there is no pkg-config"
command -v valgrind >/dev/null || skip "there is no valgrind"

capi=$PWD/crates/dafs-capi
prefix=$work/prefix
PREFIX=$prefix ARCHIVE=$archive STRIP=no scripts/install.sh library development
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
[[ $(pkg-config --modversion dafs) ]] || fail "pkg-config does not know the library"
[[ $(<"$prefix/share/man/man3/dap_read.3") == '.so man3/dafs_transfer.3' ]] ||
    fail "dap_read has no manual page"
if command -v groff >/dev/null; then
    step "manual pages"
    for page in "$prefix"/share/man/man3/dafs*.3; do
        said=$(groff -man -Tutf8 -ww "$page" 2>&1 >"$work/page") || fail "${page##*/}: $said"
        [[ ! $said && -s $work/page ]] || fail "${page##*/}: $said"
    done
fi

mkdir "$work/tree"
more=()
! is_root || more=(--no-root-squash)
serve "$work/tree" ${more[@]+"${more[@]}"}

compile() {
    local source=$1 program=$2
    shift 2
    # shellcheck disable=SC2046
    cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -pthread "$@" $(pkg-config --cflags dafs) \
        "$source" -o "$program" $(pkg-config --libs dafs)
}
# Runs a program in all ways. In a forking program, valgrind would report memory of the parent's
# threads as lost in the child; the address sanitizer checks the parent alone. A checked program
# accesses no freed memory: valgrind counts each such access, even one that is handled.
clean() {
    local program=$1 name=${1##*/} leaks=full
    ! grep -q 'fork()' "$capi/$program.c" || leaks=no
    compile "$capi/$program.c" "$work/$name"
    compile "$capi/$program.c" "$work/$name-asan" -fsanitize=address,undefined
    for transport in 1 2; do
        step "$name over transport $transport"
        head -c 1048576 /dev/zero >"$work/tree/file"
        ASAN_OPTIONS=detect_leaks=1 timeout 120 "$work/$name-asan" "$url" "$transport" ||
            fail "$name with the address sanitizer"
        head -c 1048576 /dev/zero >"$work/tree/file"
        timeout 240 valgrind -q --error-exitcode=9 --leak-check="$leaks" --show-leak-kinds=definite \
            --errors-for-leak-kinds=definite --fair-sched=yes \
            --suppressions="$capi/tests/c/valgrind.supp" \
            "$work/$name" "$url" "$transport" watched || fail "$name under valgrind"
    done
}
for program in examples/hello examples/asynchronous tests/c/everything tests/c/bad_input; do
    clean "$program"
done

if echo '#include <zlib.h>' | cc -E - >/dev/null 2>&1; then
    step "gzip by the library writes the bytes that zlib writes without it"
    compile "$capi/examples/gzip.c" "$work/gzip" -fsanitize=address,undefined -Wl,--no-as-needed -lz
    seq 400000 >"$work/tree/numbers"
    : >"$work/tree/empty"
    # More than all pieces that are under way at once.
    head -c 4000000 /dev/urandom | base64 -w 0 >"$work/tree/letters"
    python3 - "$work/tree" >"$work/expected" <<'PYTHON'
import sys
import zlib

for name in ("numbers", "empty", "letters"):
    packer = zlib.compressobj(wbits=31)
    with open(f"{sys.argv[1]}/{name}", "rb") as file:
        sys.stdout.buffer.write(packer.compress(file.read()) + packer.flush())
PYTHON
    for transport in iwarp shm; do
        ASAN_OPTIONS=detect_leaks=1 timeout 120 "$work/gzip" "$url/?transport=$transport" packed \
            numbers empty letters || fail "gzip over $transport"
        same "$work/expected" "$work/tree/packed" "the packed files over $transport"
        rm -f "$work/tree/packed"
    done
    ASAN_OPTIONS=detect_leaks=0 expect 1 DAP_E_NOENT "$work/gzip" "$url" packed missing
fi
stop_server

step "mounts of an NFS server"
mkdir "$work/nfs"
serve "$work/nfs" --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 --nfs-unprivileged-ports \
    ${more[@]+"${more[@]}"}
address() { sed -n "s/.*listening for NFS$1 *address=//p" "$log" | head -n 1; }
tcp=$(address '')
rdma=$(address ' over RDMA (iWARP in software)')
[[ $tcp && $rdma ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
compile "$capi/tests/c/mount.c" "$work/mount"
compile "$capi/tests/c/mount.c" "$work/mount-asan" -fsanitize=address,undefined
for place in "nfs://$tcp/?vers=4.2" "nfs://$tcp/?vers=3" "nfs+rdma://$rdma/"; do
    ASAN_OPTIONS=detect_leaks=1 timeout 120 "$work/mount-asan" "$place" ||
        fail "mount with the address sanitizer: $place"
    [[ ! $(ls -A "$work/nfs") ]] || fail "something was left: $place"
done
timeout 240 valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --fair-sched=yes \
    --suppressions="$capi/tests/c/valgrind.supp" "$work/mount" "nfs://$tcp/" ||
    fail "mount under valgrind"
stop_server

echo secret | "$dafs" passwd "$work/users" anna --uid "$(id -u)" --gid "$(id -g)"
mkdir "$work/anna"
cat >"$work/users.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "users"
[[export]]
name = ""
path = "anna"
squash = "none"
END
serve --config "$work/users.toml" --state-directory "$work/anna-state"
clean tests/c/credentials
stop_server
