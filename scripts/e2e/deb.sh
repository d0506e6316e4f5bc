#!/bin/bash
# The Debian packages: they are made, each file is in one of them, lintian finds neither errors nor warnings, and what they
# have works when it is unpacked.
source "$(dirname "$0")/lib.sh"

for tool in dpkg-buildpackage dh dh_python3; do
    command -v "$tool" >/dev/null || skip "there is no $tool; install it with: scripts/setup.sh deb"
done
target=$(realpath "${DAFS_TARGET:-$PWD/target/debug}")
for file in dafs libdafs_preload.so libdafs_capi.a lib_dafs.so; do
    [[ -f $target/$file ]] || cargo build --locked --quiet --workspace --lib --bins || fail "$file cannot be built"
    [[ -f $target/$file ]] || fail "there is no $target/$file"
done

step "the packages are made"
# A build for tests has large symbols, which take minutes to pack well.
DEB_BUILD_OPTIONS=noautodbgsym DPKG_DEB_COMPRESSOR_TYPE=gzip BUILD=$target \
    scripts/deb.sh "$work/packages" >"$work/made" 2>"$work/said" || { cat "$work/said"; fail "no packages"; }
cat "$work/said"
names=(dafs libdafs1 libdafs-dev python3-dafs)
grep -q 'without dafs-fio' "$work/said" || names+=(dafs-fio)
# package NAME -- its file.
package() { echo "$work/packages/$1"_*.deb; }
for name in "${names[@]}"; do
    [[ -f $(package "$name") ]] || fail "there is no package $name: $(ls "$work/packages")"
done
[[ $(find "$work/packages" -name '*.deb' | wc -l) == "${#names[@]}" ]] || fail "others are there: $(ls "$work/packages")"

step "their contents"
for name in "${names[@]}"; do
    dpkg-deb -c "$(package "$name")" | awk '{ print $6 }' >"$work/list-$name"
    dpkg-deb -x "$(package "$name")" "$work/root"
    dpkg-deb -e "$(package "$name")" "$work/control-$name"
    ! grep -vE '^\./$|^\./(usr|lib|etc)/' "$work/list-$name" || fail "$name has files elsewhere"
    [[ -s $work/root/usr/share/doc/$name/copyright ]] || fail "$name has no copyright"
done
cat "$work"/list-* | grep -v '/$' | sort | uniq -d >"$work/twice"
[[ ! -s $work/twice ]] || { cat "$work/twice"; fail "files are in two packages"; }
has() { grep -qxE "\./$2" "$work/list-$1" || { cat "$work/list-$1"; fail "$1 has no $2"; }; }
for file in usr/bin/dafs usr/sbin/mount.dafs usr/lib/dafs/libdafs_preload.so '(usr/)?lib/systemd/system/dafs.service' \
    '(usr/)?lib/systemd/system/dafs-data@.service' '(usr/)?lib/systemd/system/dafs-mount@.service' \
    usr/share/man/man1/dafs.1.gz usr/share/man/man1/dafs-serve.1.gz usr/share/man/man5/dafs.toml.5.gz \
    usr/share/man/man8/mount.dafs.8.gz usr/share/bash-completion/completions/dafs \
    usr/share/zsh/vendor-completions/_dafs usr/share/fish/vendor_completions.d/dafs.fish \
    usr/share/doc/dafs/examples/dafs.toml usr/share/doc/dafs/docs/serving.md etc/dafs/; do
    has dafs "$file"
done
has libdafs1 'usr/lib/[^/]+/libdafs\.so\.1'
has libdafs-dev usr/include/dafs.h
has libdafs-dev 'usr/lib/[^/]+/pkgconfig/dafs\.pc'
has libdafs-dev 'usr/share/man/man3/dap_read\.3\.gz'
has python3-dafs 'usr/lib/python3/dist-packages/dafs/_dafs\.abi3[^/]*\.so'
! grep -rlF /usr/local "$work/root" --include='*.service' --include='mount.dafs' --include='*.pc' ||
    fail "these name another prefix"

step "their dependencies and scripts"
field() { dpkg-deb -f "$(package "$1")" "$2"; }
[[ $(field libdafs-dev Depends) == *"libdafs1 (= $(field libdafs1 Version))"* ]] || fail "libdafs-dev fits any library"
[[ $(field dafs Depends) == *libc6* && $(field python3-dafs Depends) == *python3* ]] || fail "dependencies are missing"
if [[ -e $work/control-dafs-fio ]]; then
    [[ $(field dafs-fio Depends) == *'fio (= '*libdafs1* ]] || fail "dafs-fio fits any fio: $(field dafs-fio Depends)"
fi
grep -q ' dap_read@DAFS_1 ' "$work/control-libdafs1/symbols" || fail "the symbols are missing"
for script in "$work"/control-*/{preinst,postinst,prerm,postrm}; do
    [[ ! -e $script ]] || sh -n "$script" || fail "${script#"$work"/} is no script"
done
grep -q 'deb-systemd-helper purge .*dafs.service' "$work/control-dafs/postrm" || fail "the unit stays after purge"
# A purge takes the state of a server, all of which docs/serving.md lists.
removed=" $(sed -n '/for name in inventory/,/; do/p' "$work/control-dafs/postrm" | tr -d '\\;' | xargs) "
state=$(sed -n '/^## The state directory/,/^A server does not start/p' docs/serving.md | sed -n 's/^| \(`[^|]*\)|.*/\1/p' | tr -d '`,')
[[ $state == *handle-key* ]] || fail "docs/serving.md lists no state"
for name in $state; do [[ $removed == *" $name "* ]] || fail "the state $name stays after purge"; done
# The enabled state of an administrator is kept, and none is made.
grep -q "deb-systemd-helper debian-installed .*dafs.service" "$work/control-dafs/postinst" || fail "a unit is enabled"
! grep -q 'deb-systemd-invoke start' "$work/control-dafs/postinst" || fail "a unit is started"
grep -q 'deb-systemd-invoke stop' "$work/control-dafs/prerm" || fail "a removed server goes on"

step "the container"
# Each step is of a kind that deb_chroot.sh can carry out, and has what it needs in these packages.
container=packaging/Containerfile
unknown=$(grep -vE '^(#.*|ARG BASE=\S+|FROM \$\{BASE\}|COPY target/deb/dafs_\*\.deb /tmp/|RUN .+|VOLUME \[.+\]|EXPOSE [0-9 ]+|STOPSIGNAL SIGTERM|ENTRYPOINT \[.+\]|CMD \[.+\])$' \
    "$container" || true)
[[ ! $unknown ]] || fail "$container: $unknown"
words() { sed -n "s/^$1 \[\"\(.*\)\"\]\$/\1/p" "$container" | sed 's/", "/ /g'; }
has dafs "$(words ENTRYPOINT | sed 's|^/||')"
[[ $(words CMD) == 'serve --config /etc/dafs/dafs.toml' ]] || fail "the container runs: $(words CMD)"
for port in $(sed -n 's/^EXPOSE //p' "$container"); do
    grep -q "^| $port " docs/operating.md || fail "docs/operating.md has no port $port"
done

step "they work, unpacked"
root=$work/root
mkdir "$work/tree"
echo content >"$work/tree/file"
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(dirname "$(find "$root/usr/lib" -name 'libdafs.so.1')")
dafs=$root/usr/bin/dafs
serve "$work/tree" ${squash[@]+"${squash[@]}"}
[[ $("$dafs" cat "$url/file") == content ]] || fail "the command does not work"
[[ $(timeout 120 "$dafs" run --at "/data=$url" cat /data/file) == content ]] || fail "dafs run does not work"
cc -o "$work/hello" "$root/usr/share/doc/libdafs-dev/examples/hello.c" -I"$root/usr/include" -L"$LD_LIBRARY_PATH" -ldafs ||
    fail "the example does not compile"
timeout 60 "$work/hello" "$url" >"$work/said" 2>&1 || { cat "$work/said"; fail "the example does not run"; }
PYTHONPATH=$root/usr/lib/python3/dist-packages timeout 60 python3 - "$url" <<'END' || fail "Python does not read the file"
import importlib.metadata, sys
import dafs
assert importlib.metadata.version("dafs")
entry = importlib.metadata.distribution("dafs").entry_points
assert [(e.group, e.name) for e in entry] == [("fsspec.specs", "dafs")], entry
with dafs.connect(sys.argv[1]) as client, client.open("file", "rb") as file:
    assert file.read() == b"content\n"
END
stop_server

command -v lintian >/dev/null ||
    skip "all but lintian has passed; install it with: scripts/setup.sh deb"
step "lintian"
root_option=()
! is_root || root_option=(--allow-root)
lintian ${root_option[@]+"${root_option[@]}"} --fail-on error,warning "$work"/packages/*.deb >"$work/said" 2>&1 ||
    { cat "$work/said"; fail "lintian finds errors or warnings; an exception and its reason go to packaging/debian/*.lintian-overrides"; }
cat "$work/said"
