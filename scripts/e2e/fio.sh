#!/bin/bash
# The fio engine, built for the installed fio: it reads back its writes at all depths, from threads
# and processes, from either memory; it waits for a server that is killed and restarted; it refuses
# unsupported jobs with a sentence; it makes few system calls; and the job file of docs/fio.md works.
source "$(dirname "$0")/lib.sh"

command -v fio >/dev/null || skip "there is no fio; install it with: scripts/setup.sh test"
command -v dpkg-source >/dev/null ||
    skip "there is no dpkg-source; install dpkg-dev with: scripts/setup.sh test"
fio/headers.sh >/dev/null 2>"$work/said" || skip "no headers of fio: $(tail -n 1 "$work/said")"
archive=${DAFS_TARGET:-$PWD/target/debug}/libdafs_capi.a
[[ -f $archive ]] || cargo build --locked --quiet -p dafs-capi || fail "the library cannot be built"
prefix=$work/prefix
PREFIX=$prefix ARCHIVE=$archive STRIP=no scripts/install.sh library development fio
engine=$prefix/lib/libdafs_fio.so

mkdir "$work/tree" "$work/here"
arguments=(--lease 5)
! is_root || arguments+=(--no-root-squash)
serve "$work/tree" "${arguments[@]}"
jobs=$PWD/fio/jobs example=$PWD/docs/fio.md capi=$PWD/crates/dafs-capi here=$PWD/scripts/e2e
# fio leaves files in its working directory.
cd "$work/here" || exit

# run ARGUMENTS... -- fio with the engine, which has to succeed.
base=()
run() {
    timeout 120 fio --minimal --ioengine="external:$engine" "${base[@]}" "$@" >"$work/said" 2>&1 ||
        { cat "$work/said"; fail "status $?: $*"; }
}
# refused SENTENCE ARGUMENTS... -- fio fails and says so.
refused() {
    local text=$1
    shift
    expect 1 "$text" timeout 60 fio --minimal --ioengine="external:$engine" "$@"
}

for transport in shm iwarp; do
    step "verified over $transport"
    base=(--dafs_url="$url" --dafs_transport="$transport" --bs=4k --size=4m --verify=crc32c)
    for depth in 1 2 32 128 5000; do
        run --name=depth --filename=deep/er/file --rw=randwrite --iodepth=$depth --unlink=1
    done
    [[ ! -e $work/tree/deep/er/file ]] || fail "the file was not removed"
    run --name=batches --rw=randrw --iodepth=64 --iodepth_batch=16 --iodepth_low=8 \
        --iodepth_batch_complete_min=8 --iodepth_batch_complete_max=32
    run --name=threads --thread --numjobs=4 --rw=randrw --iodepth=8
    run --name=forks --numjobs=4 --rw=randrw --iodepth=8
    # Threads with sessions, of a process that forks.
    run --name=first --thread --rw=randrw --iodepth=8 --time_based --runtime=2 \
        --name=later --startdelay=1 --rw=randrw --bs=4k --size=4m --iodepth=8 --verify=crc32c
    run --name=parallel --create_serialize=0 --numjobs=2 --rw=randrw --iodepth=8
    run --name=own --rw=randrw --iodepth=16 --dafs_memory=registered --direct=1
    run --name=aligned --rw=randrw --iodepth=16 --bsrange=1k-64k --direct=1 --iomem_align=65536
    run --name=many --rw=randrw --nrfiles=10 --openfiles=3 --iodepth=8
    run --name=again --rw=randwrite --loops=3 --unlink_each_loop=1 --iodepth=8
    run --name=backlog --rw=randwrite --iodepth=16 --verify_backlog=64 --verify_async=2
    run --name=logged --filename=logged --rw=randrw --iodepth=8 --write_iolog="$work/iolog"
    run --name=logged --read_iolog="$work/iolog" --iodepth=8
    run --name=synced --rw=randwrite --iodepth=8 --fsync=16 --fdatasync=4 --end_fsync=1
    run --name=stable --rw=randwrite --iodepth=8 --size=1m --sync=dsync
    # Blocks larger than the server's limit.
    run --name=large --rw=randwrite --bs=16m --size=64m --iodepth=3
    rm -r "${work:?}/tree/"*
done
base=(--dafs_url="$url" --bs=4k --size=4m)
run --name=appended --filename=log --rw=write --file_append=1
run --name=appended --filename=log --rw=write --file_append=1
[[ $(stat -c %s "$work/tree/log") == 8388608 ]] || fail "nothing was appended"
run --name=made --filename=made --rw=read --create_only=1
[[ $(stat -c '%s %b' "$work/tree/made") == '4194304 '???? ]] || fail "the file was not filled"

step "without batches submissions gather, and memory is looked at once"
cc -std=c11 -Wall -Wextra -Werror -shared -fPIC -o "$work/calls.so" "$here/fio_calls.c"
counted=(--name=counted --filename=counted --size=16m --iodepth=32 --thread --dafs_transport=iwarp)
run "${counted[@]}" --rw=write
timeout 120 env LD_PRELOAD="$work/calls.so" FIO_CALLS="$work/calls" fio --minimal \
    --ioengine="external:$engine" "${base[@]}" "${counted[@]}" --rw=randread \
    >"$work/said" 2>&1 || { cat "$work/said"; fail "status $?: counted"; }
read -r sends probes <"$work/calls"
echo "4096 reads: $sends sends, $probes looks at memory"
[[ $sends -gt 0 && $sends -lt 4000 && $probes -lt 1024 ]] || fail "too many system calls"

if command -v valgrind >/dev/null; then
    step "under valgrind"
    cat >"$work/loader.supp" <<'END'
{
    the loader itself, about $ORIGIN
    Memcheck:Addr8
    fun:strncmp
    fun:is_dst
    ...
    fun:dl_open_worker_begin
}
END
    timeout 240 valgrind -q --error-exitcode=9 --leak-check=no --fair-sched=yes \
        --suppressions="$work/loader.supp" --suppressions="$capi/tests/c/valgrind.supp" \
        fio --minimal --ioengine="external:$engine" "${base[@]}" --name=valgrind --thread \
        --numjobs=2 --rw=randrw --size=512k --iodepth=16 --verify=crc32c --fsync=8 \
        >"$work/said" 2>&1 || { cat "$work/said"; fail "under valgrind"; }
fi

step "damage is found"
run --name=damaged --filename=damaged --rw=write --verify=crc32c
printf 'other' | dd of="$work/tree/damaged" bs=1 seek=300000 conv=notrunc status=none
refused "verify failed at file damaged offset 299008" "${base[@]}" --name=damaged \
    --filename=damaged --rw=read --verify=crc32c
truncate -s 1M "$work/tree/damaged"
refused "damaged has 1048576 of 4194304 bytes, and --readonly forbids" "${base[@]}" \
    --name=damaged --filename=damaged --rw=read --readonly

step "refusals"
some=(--name=job --filename=file --rw=read --size=1m)
refused "there is no dafs_url; give dafs_url=dafs://HOST" "${some[@]}"
refused "does not start with dafs://" "${some[@]}" --dafs_url=nfs://host/path
refused "cannot connect: Connection refused" "${some[@]}" --dafs_url=dafs://127.0.0.1:1/
refused "$url/none: LOOKUP failed: NOENT" "${some[@]}" --dafs_url="$url/none"
refused "failed parsing dafs_transport=carrier" --dafs_url="$url" --dafs_transport=carrier "${some[@]}"
some+=(--dafs_url="$url")
refused "file has 0 of 1048576 bytes, and --readonly forbids" "${some[@]}" --readonly
refused "file has 0 of 1048576 bytes, and allow_file_create=0" "${some[@]}" --allow_file_create=0
refused "file is not there, and without size= it cannot be made" --name=job --filename=file --rw=read \
    --dafs_url="$url"
mkdir "$work/tree/folder"
refused "folder is no regular file" "${some[@]}" --filename=folder
refused "trim is not supported" "${some[@]}" --rw=randtrim
refused "sync_file_range is not supported" "${some[@]}" --rw=write --sync_file_range=write:8
refused "fsync_on_close is not supported" "${some[@]}" --rw=write --fsync_on_close=1
refused "pre_read is not supported" "${some[@]}" --pre_read=1
refused "fill_device is not supported" "${some[@]}" --rw=write --fill_device=1
refused "iomem is not supported" "${some[@]}" --iomem=mmap
refused "can't be used with offloaded submit" "${some[@]}" --io_submit_mode=offload
[[ ! -e $work/tree/file ]] || fail "a refused job has made its file"
refused "bytes for buffers: memory could not be had" "${some[@]}" --size=64m --bs=64m \
    --iodepth=1000000 --dafs_memory=registered

step "the files of the benchmarks"
for file in "$jobs"/*.fio; do
    for options in '' --thread; do
        # shellcheck disable=SC2086
        timeout 120 fio --minimal --ioengine="external:$engine" --dafs_url="$url" --iodepth=8 \
            --time_based --runtime=1 $options "$file" >"$work/said" 2>&1 ||
            { cat "$work/said"; fail "$file"; }
    done
done

step "the job file of docs/fio.md"
awk '/^<!-- the tests run this one -->$/ { found = 1; next } found && /^```$/ { exit }
    found && !/^```/' "$example" |
    sed -e "s,/usr/local/lib,$prefix/lib," -e "s,dafs://server/export,$url," >job.fio
grep -q "^dafs_url=$url" job.fio || fail "docs/fio.md has no job file"
timeout 120 fio job.fio >"$work/said" 2>&1 || { cat "$work/said"; fail "the job file"; }
[[ $(grep -c 'err= 0' "$work/said") == 3 ]] || { cat "$work/said"; fail "not all three jobs ran"; }
timeout 20 fio --enghelp="$engine" | grep '^dafs_url ' >/dev/null || fail "no help about options"
stop_server

step "a user with a password"
echo secret | "$dafs" passwd "$work/users" anna --uid 4242 --gid 4242
(umask 077 && printf 'secret\nmore\n' >"$work/password" && printf 'other' >"$work/wrong")
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "users"
trusted = []
[[export]]
name = "data"
path = "tree"
squash = "none"
END
chmod 777 "$work/tree"
serve --config "$work/dafs.toml"
some=(--name=job --filename=proven --rw=write --size=64k --bs=4k --verify=crc32c)
for transport in shm iwarp; do
    base=(--dafs_url="${url/\/\//\/\/anna@}/data" --dafs_transport="$transport")
    rm -f "$work/tree/proven"
    run "${base[@]}" --dafs_password_file="$work/password" "${some[@]}"
    ! is_root || [[ $(stat -c %u "$work/tree/proven") == 4242 ]] || fail "the file is not anna's"
    DAFS_PASSWORD=secret run "${base[@]}" "${some[@]}"
    refused "not accepted" "${base[@]}" --dafs_password_file="$work/wrong" "${some[@]}"
    DAFS_PASSWORD=other refused "not accepted" "${base[@]}" "${some[@]}"
    refused "names a user; give the password by dafs_password_file" "${base[@]}" "${some[@]}"
    refused "none: No such file" "${base[@]}" --dafs_password_file="$work/none" "${some[@]}"
    refused "dafs_password_file needs a user" --dafs_url="$url/data" \
        --dafs_password_file="$work/password" "${some[@]}"
done
stop_server
cd - >/dev/null || exit

# The megabytes of a file that are not a hole.
written() { echo $(($(stat -c %b "$work/tree/$1" 2>/dev/null || echo 0) / 2048)); }
for transport in shm iwarp; do
    step "killed servers over $transport"
    rm -rf "${work:?}/tree/"*
    serve "$work/tree" "${arguments[@]}"
    place=${url#dafs://}
    (cd "$work/here" && exec timeout 120 fio --minimal --ioengine="external:$engine" \
        --dafs_url="$url" --dafs_transport=$transport --name=killed --filename=killed \
        --rw=randwrite --bs=4k --size=96m --iodepth=32 --numjobs=1 --rate=32m \
        --verify=crc32c) >"$work/fio" 2>&1 &
    client=$!
    started+=("$client")
    for megabytes in 8 32 64; do
        has_more() { [[ $(written killed) -gt $megabytes ]] || ! kill -0 "$client"; }
        eventually has_more
        kill -0 "$client" 2>/dev/null || { cat "$work/fio"; fail "fio was over too soon"; }
        kill_server
        serve "$work/tree" "${arguments[@]}" --listen "$place"
    done
    status=0
    wait "$client" || status=$?
    [[ $status == 0 ]] || { cat "$work/fio"; fail "status $status"; }
    ! grep -q 'verify failed' "$work/fio" || { cat "$work/fio"; fail "wrong data"; }

    step "a server that loses what was not stable over $transport"
    for sync in --end_fsync=1 --fsync=8192 --fdatasync=8192; do
        rm -f "$work/tree/lost"
        (cd "$work/here" && exec timeout 120 fio --minimal --ioengine="external:$engine" \
            --dafs_url="$url" --dafs_transport=$transport --name=lost --filename=lost \
            --rw=randwrite --bs=4k --size=48m --iodepth=32 --rate=32m $sync) >"$work/fio" 2>&1 &
        client=$!
        started+=("$client")
        has_begun() { [[ $(written lost) -gt 4 ]] || ! kill -0 "$client"; }
        eventually has_begun
        kill_server
        # A kill alone loses no data of the system.
        truncate -s 0 "$work/tree/lost"
        truncate -s 48M "$work/tree/lost"
        serve "$work/tree" "${arguments[@]}" --listen "$place"
        status=0
        wait "$client" || status=$?
        [[ $status == 1 ]] || { cat "$work/fio"; fail "status $status with $sync, not 1"; }
        grep -q 'dafs: lost: sync: data that was written and not committed is lost' "$work/fio" ||
            { cat "$work/fio"; fail "fio does not say what is lost with $sync"; }
    done

    step "a server that stays away over $transport"
    (cd "$work/here" && exec timeout 120 fio --minimal --ioengine="external:$engine" \
        --dafs_url="$url/?deadline=3&recovery=2" --dafs_transport=$transport --name=left \
        --filename=left --rw=randwrite --bs=4k --size=96m --iodepth=32 --rate=32m) \
        >"$work/fio" 2>&1 &
    client=$!
    started+=("$client")
    has_begun() { [[ $(written left) -gt 1 ]] || ! kill -0 "$client"; }
    eventually has_begun
    kill_server
    status=0
    wait "$client" || status=$?
    [[ $status == 1 ]] || { cat "$work/fio"; fail "status $status, not 1"; }
    grep -q 'io_u error on file left' "$work/fio" && grep -q 'the session is over' "$work/fio" ||
        { cat "$work/fio"; fail "fio does not say why"; }
done
