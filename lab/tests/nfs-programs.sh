#!/bin/bash
# nfs-programs.sh -- demanding programs on mounts of the kernel's client: the build of a C program,
# git, tar with hard links, holes and extended attributes, and fio with verification by this client
# and by another.
source "$(dirname "$0")/../nfs.sh"

# The tools are the host's own, visible in the guest.
for tool in gcc make git tar setfattr fio; do
    command -v "$tool" >/dev/null || skip "no $tool; try: scripts/setup.sh lab"
done
program=$("$lab/lab.sh" program)
# Out of some 60 MB, of which none goes through the server; on CephFS a few parts in a thousand do.
layouts_bytes_min=20000000
[[ $layouts == cephfs ]] || layouts_alone=yes

serve
boot 1 2
cp "$program" "$work/out/program.tar.gz"

for version in "${versions[@]}"; do
    step "NFSv$version: build of a C program"
    # In the second round nothing is to be made, so times are what they should be; after a change of
    # one file only that is.
    guest 1 "version=$version"'
        nfs_mount $version a
        mkdir -p /mnt/a/build-$version
        on_host tar -xzf /tmp/out/program.tar.gz --strip-components=1 -C /mnt/a/build-$version
        build() { on_host make -s -C /mnt/a/build-$version/src CFLAGS=-O0 "$@" lua; }
        build
        build -q
        touch /mnt/a/build-$version/src/lapi.c
        fails build -q
        build
        [[ $(/mnt/a/build-$version/src/lua -e "print(6 * 7)") == 42 ]]
        /mnt/a/build-$version/src/lua -e "
            local out = assert(io.open(\"/mnt/a/build-$version/lines\", \"w\"))
            for i = 1, 10000 do out:write(i, \"\n\") end
            out:close()
            local sum = 0
            for line in io.lines(\"/mnt/a/build-$version/lines\") do sum = sum + line end
            assert(sum == 50005000)"
        umount /mnt/a'
    [[ $version != "${versions[0]}" || ${DAFS_TEST_LONG:-} ]] || break
done

step "git clone and gc"
# The project may get another commit meanwhile.
git rev-parse HEAD 'HEAD^{tree}' >"$work/project" 2>/dev/null || true
if ! git bundle create -q "$work/out/bundle" HEAD 2>"$work/said"; then
    cat "$work/said"
    skip "this project is no git repository here"
fi
guest 1 "version=${versions[0]}"'
    nfs_mount $version a
    on_host git -c advice.detachedHead=false clone -q /tmp/out/bundle /mnt/a/clone
    on_host git -C /mnt/a/clone gc -q --prune=now
    on_host git -C /mnt/a/clone fsck --no-progress
    [[ -z $(on_host git -C /mnt/a/clone status --porcelain) ]]
    cd /mnt/a/clone
    echo change >>README.md
    on_host git -C /mnt/a/clone -c user.name=lab -c user.email=lab commit -qam change
    on_host git -C /mnt/a/clone reset -q --hard HEAD~1
    on_host git -C /mnt/a/clone rev-parse HEAD HEAD^{tree} >/out/tree
    cd /'
cmp "$work/project" "$work/out/tree" || fail "another tree"
if [[ ! $server_guest && ! $layouts ]]; then
    git -c safe.directory='*' -C "$work/export/clone" status --porcelain >"$work/said"
    [[ ! -s $work/said ]] || fail "the clone differs on the host: $(cat "$work/said")"
fi

step "tar with hard links, holes and extended attributes"
# Which came with version 4.2.
guest 1 "layouts=$layouts"'
    umount /mnt/a
    nfs_mount 4.2 a
    mkdir -p /tmp/tree/deep
    cd /tmp/tree
    for ((i = 0; i < 50; i++)); do echo "file $i" >deep/$i; done
    for ((i = 0; i < 50; i += 5)); do ln deep/$i linked-$i; done
    ln linked-0 linked-again
    ln -s deep/1 pointing
    mkfifo fifo
    truncate -s 20M holes
    printf end >>holes
    printf middle | dd of=holes bs=1M seek=7 conv=notrunc status=none
    chmod 2750 deep
    chmod 6755 deep/7
    touch -h -d "1999-12-31 23:59:59.123456789 UTC" pointing
    touch -d "2003-05-18 03:33:20.5 UTC" deep/8
    on_host setfattr -n user.colour -v blue /tmp/tree/deep/1
    on_host setfattr -n user.long -v "$(printf "%01000d" 5)" /tmp/tree/deep
    on_host setfattr -n user.empty /tmp/tree/linked-0
    cd /tmp
    copy() { on_host tar --xattrs --sparse -C "$1" -cf /tmp/archive .; }
    extract() { on_host tar --xattrs --xattrs-include=user.\* -C "$1" -xf /tmp/archive; }
    describe() {
        cd "$1"
        # The space of a directory on disk is not a property of the tree.
        on_host find "$1" -mindepth 1 \( -type d -printf "%P %y %m %U %G %n %T@\n" \) -o \
            -printf "%P %y %m %U %G %n %s %l %T@\n" | sort
        on_host bash -c "cd $1; find . -print0 | sort -z | xargs -0 getfattr -h -d -m ^user\\\\."
        find . -type f -exec sha256sum {} + | sort
        cd /
    }
    describe /tmp/tree >/tmp/wanted
    copy /tmp/tree
    mkdir /mnt/a/tree
    extract /mnt/a/tree
    echo 3 >/proc/sys/vm/drop_caches
    describe /mnt/a/tree >/tmp/found
    diff /tmp/wanted /tmp/found
    [[ /mnt/a/tree/deep/0 -ef /mnt/a/tree/linked-again ]]
    # Files on several nodes are told to use as much space as they are long.
    [[ $layouts || $(du -k /mnt/a/tree/holes | cut -f 1) -lt 5000 ]]
    copy /mnt/a/tree
    mkdir /tmp/again
    extract /tmp/again
    describe /tmp/again | diff /tmp/wanted -'

step "fio with verification"
# `direct` goes around the client's cache; the others through it, with several sizes of blocks.
cat >"$work/out/jobs" <<END
[global]
thread
ioengine=psync
directory=/mnt/a/fio
size=${LAB_FIO_MIB:-6}m
verify=crc32c
verify_fatal=1
do_verify=1
verify_state_save=0
verify_backlog=64
end_fsync=1
[random]
rw=randwrite
bsrange=512-64k
bs_unaligned=1
norandommap=0
[blocks]
rw=randwrite
bs=4k
numjobs=2
[direct]
rw=randwrite
bs=16k
direct=1
[sequential]
rw=write
bs=1m
fsync=2
END
for version in "${versions[@]}"; do
    guest 1 "umount /mnt/a; nfs_mount $version a"'
        rm -rf /mnt/a/fio
        mkdir /mnt/a/fio
        on_host fio --output=/tmp/said /tmp/out/jobs || { cat /tmp/said; false; }'
    # Data that another machine reads has passed through the server.
    guest 2 "umount /mnt/a 2>/dev/null || true; nfs_mount $version a"'
        on_host fio --output=/tmp/said --verify_only=1 /tmp/out/jobs || { cat /tmp/said; false; }
        umount /mnt/a'
    [[ $version != "${versions[0]}" || ${DAFS_TEST_LONG:-} ]] || break
done
guest 1 'umount /mnt/a'
