#!/bin/bash
# The Debian packages in a bare system of the Debian of this machine: apt installs them, the configuration is made and
# checked, the server serves, DAFS clients and a stock NFS client use it, an upgrade keeps the files of the administrator
# and the work of a client, and nothing is left after a purge. It needs root, debootstrap and a mirror of Debian
# (DAFS_MIRROR, else that of apt). DAFS_RELEASE=trixie tries them in another Debian than this one, without the engine for
# this one's fio; in an earlier one they cannot be installed.
source "$(dirname "$0")/lib.sh"

is_root || skip "making a bare system needs root"
for tool in dpkg-buildpackage dh debootstrap curl nfs-cat nfs-cp; do
    command -v "$tool" >/dev/null || skip "there is no $tool; install it with: scripts/setup.sh test"
done
# shellcheck disable=SC1091
made_on=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
release=${DAFS_RELEASE:-$made_on}
mirror=${DAFS_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1)}
[[ $release && $mirror ]] || skip "apt names no mirror of Debian; set DAFS_MIRROR to one"
curl -fsS --max-time 30 -o /dev/null "$mirror/dists/$release/Release" 2>"$work/said" ||
    skip "the mirror $mirror does not answer: $(tail -n 1 "$work/said"); set DAFS_MIRROR to another one"
in_own_mounts

target=$(realpath "${DAFS_TARGET:-$PWD/target/debug}")
for file in dafs libdafs_preload.so libdafs_capi.a lib_dafs.so; do
    [[ -f $target/$file ]] || cargo build --locked --quiet --workspace --lib --bins || fail "$file cannot be built"
done
DEB_BUILD_OPTIONS=noautodbgsym DPKG_DEB_COMPRESSOR_TYPE=gzip BUILD=$target \
    scripts/deb.sh "$work/packages" >"$work/said" 2>&1 || { cat "$work/said"; fail "no packages"; }
[[ $release == "$made_on" ]] || rm -f "$work"/packages/dafs-fio_*.deb

step "a bare $release from $mirror"
root=$work/chroot
debootstrap --variant=minbase "$release" "$root" "$mirror" >"$work/said" 2>&1 ||
    { tail -n 20 "$work/said"; fail "debootstrap failed"; }
# Its devices are those that debootstrap has made. Those of this host would be removed together with the work folder.
mount -t proc proc "$root/proc"
undo+=("umount -l $root/proc 2>/dev/null")
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
inside=(chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)
inside() { "${inside[@]}" "$@"; }
traces() { find "$root" -xdev -iname '*dafs*' ! -path "$root/packages*" | sort; }
[[ ! $(traces) ]] || fail "there is something already: $(traces)"

step "installed"
mkdir "$root/packages"
cp "$work"/packages/*.deb "$root/packages"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
# The first one by the steps of the container, which leave no lists of packages.
cp "$root"/packages/dafs_*.deb "$root/tmp"
run=$(sed -n 's/^RUN //p' packaging/Containerfile)
[[ $run ]] || fail "packaging/Containerfile has no steps"
inside sh -c "$run" >"$work/said" 2>&1 || { tail -n 30 "$work/said"; fail "the steps of the container fail"; }
[[ $(inside "$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' packaging/Containerfile)" --version) == dafs\ * ]] ||
    fail "the program of the container does not run"
inside sh -c 'apt-get -qq update && apt-get -qq -y --no-install-recommends install /packages/*.deb' >"$work/said" 2>&1 ||
    { tail -n 30 "$work/said"; fail "apt does not install the packages"; }

step "configured and served"
mkdir -p "$root/srv/projects"
echo content >"$root/srv/projects/file"
expect 0 'is made' inside dafs config init
sed -i -e 's/:20490/:0/' -e '/^listen/i admin_listen = "127.0.0.1:0"' -e '/^path/a squash = "none"' \
    -e '/^path/a durable_replies = "crash"' -e '$a [nfs]\nlisten = ["127.0.0.1:0"]' "$root/etc/dafs/dafs.toml"
expect 0 'right, 1 export' inside dafs config check
# start [--take-over]
start() {
    log=$work/log$*
    # The ready line of the server before would be taken for that of this one, which opens the file when it gets to.
    rm -f "$log.out"
    "${inside[@]}" dafs serve --config /etc/dafs/dafs.toml "$@" >"$log.out" 2>"$log" &
    server=$!
    started+=("$server")
    is_ready() { grep -qs '^ready ' "$log.out" || ! kill -0 "$server"; }
    eventually is_ready
    url=$(sed -n 's/^ready //p' "$log.out")
    url=${url%/}
    [[ $url ]] || { cat "$log"; fail "the server does not start"; }
    nfs=$(sed -n 's/.*listening for NFS.*:\([0-9]*\).*/\1/p' "$log" | head -n 1)
    [[ $nfs ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
}
# The stock client is Debian's libnfs, and no part of dafs.
by_nfs() { echo "nfs://127.0.0.1/projects/$1?version=3&nfsport=$nfs&mountport=$nfs"; }
start
[[ $("$dafs" cat "$url/projects/file") == content ]] || fail "a client outside does not read"
[[ $(inside dafs cat "$url/projects/file") == content ]] || fail "a client inside does not read"
[[ $(nfs-cat "$(by_nfs file)") == content ]] || fail "a stock NFS client does not read"
echo stock >"$work/stock"
nfs-cp "$work/stock" "$(by_nfs stock)" >/dev/null || fail "a stock NFS client does not write"
[[ $("$dafs" cat "$url/projects/stock") == stock ]] || fail "the file of the NFS client is another one"
[[ $(inside timeout 60 dafs run --at "/data=$url/projects" cat /data/file) == content ]] || fail "dafs run does not read"
inside python3 - "$url/projects" <<'END' || fail "Python does not read"
import sys, dafs
with dafs.connect(sys.argv[1]) as client, client.open("file", "rb") as file:
    assert file.read() == b"content\n"
END
stop_server

step "again, over the same configuration and state"
before=$(inside cat /etc/dafs/dafs.toml /var/lib/dafs/handle-key | sha1sum)
inside sh -c 'apt-get -qq -y --reinstall install /packages/*.deb' >"$work/said" 2>&1 ||
    { tail -n 30 "$work/said"; fail "apt does not install them again"; }
[[ $(inside cat /etc/dafs/dafs.toml /var/lib/dafs/handle-key | sha1sum) == "$before" ]] || fail "configuration or state has changed"
start
[[ $("$dafs" cat "$url/projects/file") == content ]] || fail "the server does not go on"
stop_server

step "upgraded while a client copies"
mkdir "$work/tree"
for number in $(seq 1 8); do head -c 2M /dev/urandom >"$work/tree/$number"; done
start
# The program is replaced under the server, which serves on.
inside sh -c 'apt-get -qq -y --reinstall install /packages/*.deb' >"$work/said" 2>&1 ||
    { tail -n 30 "$work/said"; fail "apt does not install them beside a server"; }
"$dafs" sync --bwlimit 4m "$work/tree" "$url/projects/tree" >"$work/copied" 2>&1 &
copy=$!
started+=("$copy")
copied() { find "$root/srv/projects/tree" -type f ! -name '.dafs-*' 2>/dev/null | wc -l; }
has_begun() { [[ $(copied) -gt 0 ]]; }
eventually has_begun
former=$server former_url=$url
start --take-over
wait "$former" || fail "the former server ended with status $?"
forget_process "$former"
[[ $url == "$former_url" ]] || fail "the next server is at $url, not at $former_url"
[[ $(copied) -lt 8 ]] || fail "the copy was over too early"
wait "$copy" || { cat "$work/copied"; fail "the copy failed"; }
forget_process "$copy"
same <(contents "$work/tree") <(contents "$root/srv/projects/tree") "the copied files"
[[ $(nfs-cat "$(by_nfs stock)") == stock ]] || fail "a stock NFS client does not read after the upgrade"
stop_server

step "removed, then purged"
mapfile -t names < <(for file in "$root"/packages/*.deb; do dpkg-deb -f "$file" Package; done)
inside apt-get -qq -y remove "${names[@]}" >"$work/said" 2>&1 || { cat "$work/said"; fail "apt does not remove them"; }
for file in etc/dafs/dafs.toml var/lib/dafs/handle-key var/lib/dafs/admin-token; do
    [[ -e $root/$file ]] || fail "removing has taken what a purge takes: $file"
done
# A server that lost its power while it made these.
for file in handle-key.7 handle-key.7.new inventory.new; do : >"$root/var/lib/dafs/$file"; done
# Of the others apt knows nothing any more, as nothing of them is left.
mapfile -t left < <(inside dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | awk '$1 == "rc" && $2 ~ /dafs/ { print $2 }')
inside apt-get -qq -y purge "${left[@]}" >"$work/said" 2>&1 || { cat "$work/said"; fail "apt does not purge them"; }
[[ ! $(traces) ]] || fail "these are left: $(traces)"
[[ $(<"$root/srv/projects/file") == content ]] || fail "a purge has touched the files of the export"
