#!/bin/bash
# The C library as it is installed: found by pkg-config, and its example and bad-input programs run
# clean under valgrind and with the address sanitizer.
source "$(dirname "$0")/lib.sh"

archive=${DAFS_TARGET:-$PWD/target/debug}/libdafs_capi.a
cargo build --locked --quiet -p dafs-capi || fail "the library cannot be built"
command -v cc >/dev/null || skip "there is no C compiler"
command -v pkg-config >/dev/null || skip "there is no pkg-config"
command -v valgrind >/dev/null || skip "there is no valgrind"

capi=$PWD/crates/dafs-capi
prefix=$work/prefix
"$capi/install.sh" "$archive" "$prefix"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
[[ $(pkg-config --modversion dafs) ]] || fail "pkg-config does not know the library"
[[ $(<"$prefix/share/man/man3/dap_read.3") == '.so man3/dafs_transfer.3' ]] ||
    fail "dap_read has no manual page"

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
programs=(examples/hello examples/asynchronous tests/c/everything tests/c/bad_input)
for program in "${programs[@]}"; do
    name=${program##*/}
    compile "$capi/$program.c" "$work/$name"
    compile "$capi/$program.c" "$work/$name-asan" -fsanitize=address,undefined
    for transport in 1 2; do
        step "$name over transport $transport"
        head -c 1048576 /dev/zero >"$work/tree/file"
        ASAN_OPTIONS=detect_leaks=0 timeout 120 "$work/$name-asan" "$url" "$transport" ||
            fail "$name with the address sanitizer"
        head -c 1048576 /dev/zero >"$work/tree/file"
        timeout 240 valgrind -q --error-exitcode=9 --leak-check=no --fair-sched=yes \
            --suppressions="$capi/tests/c/valgrind.supp" \
            "$work/$name" "$url" "$transport" || fail "$name under valgrind"
    done
done
stop_server
