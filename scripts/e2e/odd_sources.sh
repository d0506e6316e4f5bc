#!/bin/bash
# Copies of unusual files: wrong sizes, holes of gigabytes, trees deeper than a path may be long,
# attributes with any names, mount points; and ports with a foreign listener.
source "$(dirname "$0")/lib.sh"
# The mounts of the steps below are private.
! is_root || in_own_mounts

mkdir "$work/export" "$work/local"
serve "$work/export" "${squash[@]}" --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 --nfs-unprivileged-ports
tcp=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
rdma=$(sed -n 's/.*listening for NFS over RDMA (iWARP in software) *address=//p' "$log" | head -n 1)
bases=("$url" "nfs://$tcp")

step "files of /sys, which say that they are longer than they are"
short=/sys/class/net/lo/address
# The content is compared: cmp would trust the size, too.
if [[ -r $short && $(stat -c %s "$short") -gt $(wc -c <"$short") ]]; then
    cat "$short" >"$work/wanted"
    for base in "${bases[@]}"; do
        expect 0 '' "$dafs" put "$short" "$base/plain"
        same "$work/wanted" "$work/export/plain" "a file of /sys"
        expect 0 '' "$dafs" put --verify "$short" "$base/verified"
        same "$work/wanted" "$work/export/verified" "a file of /sys, verified"
    done
else
    echo "this kernel shows no such file"
fi

step "files of /proc, which say that they are empty"
(
    serve /proc/sys/kernel/random --read-only --state-directory "$work/state-proc" \
        --nfs 127.0.0.1:0 --nfs-unprivileged-ports
    tcp=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
    for base in "$url" "nfs://$tcp" "nfs://$tcp?vers=3"; do
        query=${base#"${base%%\?*}"} base=${base%%\?*}
        # The kernel returns the number only to a read at its start.
        for name in boot_id poolsize; do
            cat "/proc/sys/kernel/random/$name" >"$work/wanted"
            expect 0 '' "$dafs" get --verify "$base/$name$query" "$work/local/$name"
            same "$work/wanted" "$work/local/$name" "a file of /proc"
            expect 0 '' "$dafs" cat "$base/$name$query"
            same "$work/wanted" "$work/said" "a file of /proc"
        done
    done
    kill -TERM "$server"
    wait "$server"
)

step "an empty file, and one of exactly a piece"
: >"$work/export/empty"
head -c 1048576 /dev/urandom >"$work/export/piece"
for base in "${bases[@]}"; do
    for name in empty piece; do
        expect 0 '' "$dafs" get --verify "$base/$name" "$work/local/$name"
        same "$work/export/$name" "$work/local/$name" "the files"
    done
done

step "files around the longest that take one round trip"
mkdir "$work/local/bounds"
for bytes in 1 4095 8191 8192 8193 9000 9728 16383 16384 16385; do
    head -c $bytes /dev/urandom >"$work/local/bounds/$bytes"
done
truncate -s 8000 "$work/local/bounds/hole"
for base in "${bases[@]}"; do
    expect 0 '"files":11' "$dafs" put --json "$work/local/bounds" "$base/"
    diff -r "$work/local/bounds" "$work/export/bounds" || fail "the copies there"
    expect 0 '"files":11' "$dafs" get --json "$base/bounds" "$work/local/bounds-back"
    diff -r "$work/local/bounds" "$work/local/bounds-back" || fail "the copies here"
    [[ $(stat -c %b "$work/local/bounds-back/hole") == 0 ]] || fail "the hole is filled"
    [[ ! $(find "$work/export" "$work/local" -name '.dafs-*') ]] || fail "a temporary name stays"
    expect 0 '' "$dafs" rm -r "$base/bounds"
    [[ ! -e $work/export/bounds ]] || fail "the files are not removed"
    rm -rf "$work/local/bounds-back"
done
rm -rf "$work/local/bounds"

step "a source that is cut while it is copied"
# cut_short FILE COPY COMMAND... -- copies a large file, truncates it while the command is stopped
# half-way, and expects an error.
is_over() { [[ $(ps -o stat= -p "$1") == [Z]* || ! -d /proc/$1 ]]; }
cut_short() {
    local file=$1 copy=$2 status tries
    shift 2
    for tries in {1..20}; do
        head -c 256M /dev/zero >"$file"
        "$@" >"$work/said" 2>&1 &
        local pid=$!
        started+=("$pid")
        until [[ $(find "${copy%/*}" -name '.dafs-*.part' -size +1M) ]] || is_over "$pid"; do :; done
        kill -STOP "$pid" 2>/dev/null || true
        if [[ $(find "${copy%/*}" -name '.dafs-*.part' -size -200M) ]]; then
            truncate -s 1000 "$file"
            kill -CONT "$pid"
            status=0
            wait "$pid" || status=$?
            [[ $status == 1 ]] || fail "status $status: $(cat "$work/said")"
            grep -q "${file##*/}: became shorter while it was copied" "$work/said" ||
                fail "$(cat "$work/said")"
            [[ $(stat -c %s "$copy") -lt $((256 << 20)) ]] || fail "the copy is filled up"
            rm "$file" "$copy"
            return
        fi
        kill -CONT "$pid" 2>/dev/null || true
        wait "$pid" || true
    done
    fail "the copy was always faster ($tries tries)"
}
for base in "${bases[@]}"; do
    cut_short "$work/local/cut" "$work/export/cut" "$dafs" put "$work/local/cut" "$base/cut"
    cut_short "$work/export/cut" "$work/local/cut" "$dafs" get "$base/cut" "$work/local/cut"
done

step "holes are not read"
truncate -s 20G "$work/export/hole"
truncate -s 20G "$work/export/sparse"
printf begin | dd of="$work/export/sparse" conv=notrunc status=none
printf middle | dd of="$work/export/sparse" conv=notrunc status=none bs=1M seek=9000
for base in "${bases[@]}"; do
    expect 0 '"bytes":0' "$dafs" get --json "$base/hole" "$work/local/hole"
    [[ $(stat -c '%s %b' "$work/local/hole") == "$((20 << 30)) 0" ]] || fail "$(stat "$work/local/hole")"
    "$dafs" get --json "$base/sparse" "$work/local/sparse" >"$work/said"
    bytes=$(sed 's/.*"bytes":\([0-9]*\).*/\1/' "$work/said")
    [[ $bytes -gt 0 && $bytes -lt 10000000 ]] || fail "$bytes bytes were read"
    [[ $(stat -c %s "$work/local/sparse") == $((20 << 30)) ]] || fail "the size"
    [[ $(head -c 5 "$work/local/sparse") == begin ]] || fail "the begin"
    [[ $(dd if="$work/local/sparse" bs=1M skip=9000 count=1 status=none | head -c 6) == middle ]] ||
        fail "the middle"
    rm "$work/local/hole" "$work/local/sparse"
done
rm "$work/export/hole" "$work/export/sparse"

step "a tree that is deeper than a path may be long"
perl -e 'use strict; my ($top, $name) = @ARGV; chdir $top or die; mkdir "deep" or die; chdir "deep";
    for (1 .. 60) { mkdir $name or die; chdir $name or die }
    open my $f, ">", "file" or die; print $f "content\n"' "$work/local" "${name:=$(printf '%0150d' 7)}"
depth() {
    perl -e 'my $n = 0; chdir $ARGV[0] or die; while (chdir $ARGV[1]) { $n++ }
        open my $f, "<", "file" or die "no file at $n"; print "$n ", <$f>' "$1" "$name"
}
for base in "${bases[@]}"; do
    expect 0 '"directories":61' "$dafs" put --json "$work/local/deep" "$base/"
    [[ $(depth "$work/export/deep") == '60 content' ]] || fail "it was not copied to its end"
    expect 0 '"directories":61' "$dafs" get --json "$base/deep" "$work/local/back"
    [[ $(depth "$work/local/back") == '60 content' ]] || fail "it was not copied to its end"
    expect 0 '' "$dafs" rm -r "$base/deep"
    [[ ! -e $work/export/deep ]] || fail "it was not removed"
    rm -rf "$work/local/back"
done

step "a tree that is deeper than a stack"
perl -e 'use strict; my ($top, $depth) = @ARGV; chdir $top or die;
    for (1 .. $depth) { mkdir "d" or die; chdir "d" or die }' "$work/export" 1500
(
    # A recursion would need more stack than this for its levels.
    ulimit -s 256
    expect 0 '' "$dafs" rm -r "$url/d"
)
[[ ! -e $work/export/d ]] || fail "it was not removed"

step "attributes with any names"
attributes() {
    python3 -c 'import os, sys
for name in sorted(os.listxattr(sys.argv[1])): print(name, os.getxattr(sys.argv[1], name))' "$1"
}
if python3 -c 'import os, sys; open(sys.argv[1], "w").close()
for name in "plain", "with/slash", ".", "..", "%%", "%%a%2Fb", "per%2Fcent":
    os.setxattr(sys.argv[1], "user." + name, name.encode())' "$work/local/named" 2>/dev/null; then
    expect 0 '' "$dafs" put --xattrs "$work/local/named" "$url/named"
    same <(attributes "$work/local/named") <(attributes "$work/export/named") "the attributes"
    expect 0 '' "$dafs" get --xattrs "$url/named" "$work/local/named-back"
    same <(attributes "$work/local/named") <(attributes "$work/local/named-back") "the attributes"
    # Attributes that one side cannot keep are reported by name, and all else is copied.
    if mkdir "$work/tmpfs" && mount -t tmpfs none "$work/tmpfs" 2>/dev/null; then
        undo+=("umount -l '$work/tmpfs'")
        echo text >"$work/tmpfs/large"
        if python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.large", b"x" * 60000)
os.setxattr(sys.argv[1], "user.small", b"y")' "$work/tmpfs/large" 2>/dev/null; then
            : >"$work/export/probe"
            status=1
            ! python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.large", b"x" * 60000)' \
                "$work/export/probe" 2>/dev/null || status=0
            expect $status '' "$dafs" put --xattrs "$work/tmpfs/large" "$url/large"
            [[ $status == 0 ]] || grep -q 'large is not copied: it has 60000 bytes' "$work/said" ||
                fail "$(cat "$work/said")"
            [[ $(cat "$work/export/large") == text ]] || fail "the file was not copied"
            attributes "$work/export/large" >"$work/said"
            grep -q "user.small b'y'" "$work/said" || fail "the other attribute"
        else
            echo "this kernel keeps no attributes in memory"
        fi
    fi
else
    echo "this file system has no attributes of users"
fi

step "a mount point inside an export"
mkdir "$work/export/mnt"
if is_root && mount -t tmpfs none "$work/export/mnt" 2>/dev/null; then
    undo+=("umount -l '$work/export/mnt' 2>/dev/null")
    for base in "${bases[@]}"; do
        expect 0 'mountpoint mnt' "$dafs" ls -l "$base/"
        expect 0 '"type":"mount point"' "$dafs" ls --json "$base/"
        expect 1 'is mounted there on the server' "$dafs" stat "$base/mnt"
        expect 1 'is mounted there on the server' "$dafs" get "$base/mnt" "$work/local/mnt"
        for target in "$base/mnt2" "$base/mnt"; do
            expect 1 'is mounted there on the server' "$dafs" mv "$base/mnt" "$target"
            expect 1 'is mounted there on the server' "$dafs" mv "$base/empty" "$base/mnt/"
        done
    done
    umount "$work/export/mnt"
else
    echo "this user may not mount"
fi

step "a port at which something else listens"
coproc other { exec perl -MIO::Socket -e '$| = 1; my $l = IO::Socket::INET->new(Listen => 5,
    LocalAddr => "127.0.0.1:0") or die; print $l->sockport, "\n";
    while (my $c = $l->accept) { print $c "SSH-2.0-Something\r\n"; sysread $c, my $said, 100 }'; }
started+=("$other_PID")
read -r port <&"${other[0]}"
expect 3 'does not answer as an NFS server does' timeout 30 "$dafs" ls "nfs://127.0.0.1:$port/"
expect 3 'does not answer as an NFS server does' timeout 30 "$dafs" ls "nfs://127.0.0.1:$port/?vers=3"
expect 3 'does not answer as an NFS server does' timeout 30 "$dafs" ls "nfs://${url#dafs://}/"
expect 3 'does not answer as a DAFS server does' timeout 30 "$dafs" ls "dafs://$rdma/"
stop_server

step "a link-local address with its zone"
if is_root && unshare -n true 2>/dev/null; then
    DAFS=$dafs unshare -n bash -c '
        source scripts/e2e/lib.sh
        ip link add one type veth peer name two && ip link set one up && ip link set two up ||
            exit 77
        address() { ip -6 -o address show dev "$1" scope link | sed "s/.*inet6 \([^/]*\).*/\1/"; }
        usable() { [[ $(address one) && $(ip -6 address show dev one) != *tentative* ]]; }
        eventually usable
        mkdir "$work/export"
        echo hello >"$work/export/file"
        cat >"$work/dafs.toml" <<END
listen = ["[$(address one)%one]:0"]
danger_allow_unauthenticated_remote_clients = "anyone who reaches this port can read and write these files"
[[export]]
name = "data"
path = "export"
END
        serve --config "$work/dafs.toml"
        port=${url##*:}
        for zone in %25one %one; do
            expect 0 hello "$dafs" cat "dafs://[$(address one)$zone]:$port/data/file"
        done
        expect 0 hello "$dafs" cat "$url/data/file"
        stop_server' || { status=$?; [[ $status == 77 ]] || fail "link-local addresses"; }
else
    echo "this user may not make a name space for networks"
fi
