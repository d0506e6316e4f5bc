#!/bin/bash
# image.sh DIR -- make the lab's guest in DIR out of Debian packages alone: DIR/kernel (Linux for
# ARCH=um), DIR/initrd (its root file system) and DIR/program.tar.gz (the source of a C program, for
# a test to build). Each is made again only when its recipe has changed; newer Debian packages alone
# do not change it.
#
# The script installs no package on this machine and needs no privilege. It takes 4 to 8 minutes of
# processor time, nearly all of it for the kernel.
set -euo pipefail
unset MAKEFLAGS MAKELEVEL ARCH
image=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$image/work

program_source=lua5.4
kernel_source=${LAB_KERNEL_SOURCE:-linux-source-6.12}
# The guest's own release, whatever this machine runs: Debian 12 has no ktls-utils.
suite=trixie
packages=(bash busybox-static coreutils grep iproute2 mount sed util-linux
    nfs-common nfs-kernel-server rpcbind ktls-utils
    rdma-core rdmacm-utils ibverbs-providers ibverbs-utils)

die() { echo "lab: $*" >&2; exit 125; }

# apt-get with its own cache and an empty list of installed packages, so that it fetches all
# packages of the guest and leaves this machine's packages alone.
apt() {
    apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        -o Dir::Cache="$work" -o Dir::State::status=/dev/null "$@" ||
        die "apt-get ${*: -1} failed; as root, try: apt-get update"
}

build_kernel() {
    local source=$work/source
    mkdir -p "$source"
    (cd "$work" && apt download "$kernel_source")
    dpkg-deb --fsys-tarfile "$work/$kernel_source"_*.deb |
        tar -xO "./usr/src/$kernel_source.tar.xz" |
        tar -xJ -C "$source" --strip-components=1
    cat "$source/arch/um/configs/x86_64_defconfig" "$here/uml.config" |
        sed 's/=m$/=y/' >"$source/.config"
    make -s -C "$source" ARCH=um olddefconfig >/dev/null 2>&1
    grep '=y$' "$here/uml.config" | grep -vxFf "$source/.config" >&2 &&
        die "the kernel's configuration does not take the options above"
    make -s -C "$source" ARCH=um "-j$(nproc)" linux >"$image/build.log" 2>&1 ||
        { tail "$image/build.log" >&2; die "cannot build the kernel, see $image/build.log"; }
    install -s "$source/linux" "$image/kernel"
}

# The mirror of Debian that this machine uses.
mirror() {
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}

build_root() {
    local root=$work/root deb dir applet keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$work"/{archives,lists}/partial "$work/parts" \
        "$root"/{dev,proc,sys,run,tmp,root,mnt,job,host,out,usr/{bin,sbin,lib,lib64}}
    echo "deb [signed-by=$keyring] $(mirror) $suite main" >"$work/sources.list"
    sources=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts="$work/parts"
        -o Dir::State::lists="$work/lists" -o Acquire::Languages=none)
    apt "${sources[@]}" update
    apt "${sources[@]}" -y --no-install-recommends --download-only install "${packages[@]}"
    for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$root/$dir"; done
    for deb in "$work"/archives/*.deb; do
        # Maintainer scripts do not run here, so packages that only they need are left out.
        case ${deb##*/} in *perl*|dpkg_*|debconf_*|udev_*) continue ;; esac
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink \
            --exclude='./usr/share/[bdilmp]*/*' --exclude='*/gconv/*'
    done
    for applet in $("$root/bin/busybox" --list); do
        [[ -e $root/bin/$applet || -e $root/sbin/$applet ]] ||
            ln -s busybox "$root/bin/$applet"
    done
    mkdir -p "$root"/var/lib/nfs/{sm,sm.bak,v4recovery,rpc_pipefs,nfsdcltrack}
    touch "$root/etc/exports" "$root"/var/lib/nfs/{etab,rmtab}
    cat >"$root/etc/passwd" <<'END'
root:x:0:0:root:/root:/bin/bash
_rpc:x:100:65534::/run/rpcbind:/usr/sbin/nologin
statd:x:101:65534::/var/lib/nfs:/usr/sbin/nologin
anna:x:1000:1000:somebody without privileges:/tmp:/bin/bash
bert:x:1001:1001:somebody else:/tmp:/bin/bash
nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin
END
    printf '%s\n' root:x:0: anna:x:1000: bert:x:1001: nogroup:x:65534: >"$root/etc/group"
    install "$here/guest/init" "$root/init"
    (cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) >"$image/initrd.new"
    mv "$image/initrd.new" "$image/initrd"
}

# The upstream source of a package. Few machines have the lists of source packages, so this reads
# them itself, from this machine's package mirrors.
build_program() {
    local parts=$work/sources.list.d file
    mkdir -p "$parts" "$work/lists/partial"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [[ ! -f $file ]] || sed -E -e 's/^deb(-src)?( |\t)/deb-src /' \
            -e 's/^Types:.*/Types: deb-src/' "$file" >"$parts/${file##*/}"
    done
    (
        cd "$work"
        sources=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$parts"
            -o Dir::State::lists="$work/lists" -o Acquire::Languages=none)
        apt "${sources[@]}" update
        apt "${sources[@]}" --download-only source "$program_source"
    )
    mv "$work/${program_source}"_*.orig.tar.gz "$image/program.tar.gz"
}

# Runs build_$1, unless the part was built by the recipe on standard input.
part() {
    local stamp
    stamp=$(sha256sum)
    [[ $stamp != "$(cat "$image/$1.stamp" 2>/dev/null)" ]] || return 0
    [[ -z ${LAB_NET:-} ]] || die "build the guest first, outside of this network: lab.sh build"
    for tool in apt-get dpkg-deb cpio xz make gcc flex bison bc; do
        command -v "$tool" >/dev/null || die "no $tool; try: scripts/setup.sh lab"
    done
    echo "lab: building the guest's $1 in $image" >&2
    rm -rf "$work" "$image/$1.stamp"
    mkdir -p "$work/archives/partial"
    "build_$1"
    echo "$stamp" >"$image/$1.stamp"
    rm -rf "$work"
}

part program < <(declare -f build_program; declare -p program_source)
part root < <(declare -f build_root; declare -p packages suite; cat "$here/guest/init")
part kernel < <(declare -f build_kernel; declare -p kernel_source; cat "$here/uml.config")
