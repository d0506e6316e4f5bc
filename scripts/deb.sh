#!/bin/bash
# deb.sh [DIRECTORY] -- make Debian packages of what cargo has built, for the Debian of this machine, into DIRECTORY
# (target/deb). `make deb` builds and calls it. BUILD is cargo's output folder, by default target/release.
#
# The packages are dafs, libdafs1, libdafs-dev, python3-dafs and dafs-fio, with their symbols for debuggers.
# Without fio or its headers here, dafs-fio is left out, and a line says so.
#
# Invariants
# * The checkout stays as it is: the packages are made in a folder of their own.
# * A later commit makes packages of a higher version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "deb: $*" >&2
    exit 1
}
[[ $# -le 1 ]] || die "usage: deb.sh [DIRECTORY]"
for tool in dpkg-buildpackage dh dh_python3; do
    command -v "$tool" >/dev/null || die "there is no $tool; run: scripts/setup.sh deb"
done
target=${CARGO_TARGET_DIR:-target}
out=$(realpath -m "${1:-$target/deb}")
build=$(realpath -m "${BUILD:-$target/release}")
[[ -f $build/lib_dafs.so && -f $build/libdafs_capi.a && -x $build/dafs ]] ||
    die "there is no complete build in $build; run: make deb"

base=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
epoch=$(git log -1 --format=%ct)
version=$base+git$(date -u -d "@$epoch" +%Y%m%d%H%M%S).$(git log -1 --format=%h)
maintainer=$(git log -1 --format='%an <%ae>')
[[ ! ${DEBEMAIL:-} ]] || maintainer="${DEBFULLNAME:-${USER:-dafs}} <$DEBEMAIL>"
# Debian 12 looks for units in /lib alone.
unitdir=/usr/lib/systemd/system
! grep -q '^VERSION_ID="12"' /etc/os-release || unitdir=/lib/systemd/system

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/dafs-$base
mkdir "$tree"
cp -r packaging/debian "$tree/debian"
sed -i "s|@MAINTAINER@|$maintainer|" "$tree/debian/control"
sed -i "s|@UNITDIR@|${unitdir#/}|" "$tree/debian/dafs.install"
cat >"$tree/debian/changelog" <<END
dafs ($version) unstable; urgency=medium

  * Packages of the sources at this commit. /usr/share/doc/dafs/CHANGELOG.md
    has what users see.

 -- $maintainer  $(date -R -u -d "@$epoch")
END
# Programs need the first version that has the functions which they call: all of them are as old as the library.
{
    echo 'libdafs.so.1 libdafs1 #MINVER#'
    echo " DAFS_1@DAFS_1 $base"
    sed "s/^\(.*\) \(DAFS_1\)$/ \1@\2 $base/" crates/dafs-capi/symbols
} >"$tree/debian/libdafs1.symbols"

parts='program library development units documents python'
profiles=${DEB_BUILD_PROFILES:-}
# debhelper gives its commands another home.
cache=${XDG_CACHE_HOME:-$HOME/.cache}
export FIO_CACHE=${FIO_CACHE:-$cache/dafs-fio} DAFS_SOURCE_CACHE=${DAFS_SOURCE_CACHE:-$cache/dafs-sources}
if said=$(fio/headers.sh 2>&1 >/dev/null); then
    parts+=' fio'
else
    echo "deb: without dafs-fio: $(tail -n 1 <<<"$said")" >&2
    profiles+=' pkg.dafs.nofio'
fi
export DAFS_ROOT=$PWD DAFS_BUILD=$build DAFS_UNITDIR=$unitdir DAFS_PARTS=$parts DEB_BUILD_PROFILES=$profiles
FIO_VERSION=$(dpkg-query -W -f '${Version}' fio 2>/dev/null || true)
export FIO_VERSION
unset PREFIX DESTDIR LIBDIR FIODIR UNITDIR DOCDIR ZSHDIR SBINDIR PYTHONDIR DEBUGDIR STRIP RECORD ARCHIVE BUILD
(cd "$tree" && SOURCE_DATE_EPOCH=$epoch dpkg-buildpackage --build=binary --no-sign) >"$work/log" 2>&1 || {
    tail -n 60 "$work/log" >&2
    die "dpkg-buildpackage failed"
}
mkdir -p "$out"
for package in "$work"/*.deb; do
    mv -f "$package" "$out/"
    echo "$out/${package##*/}"
done
