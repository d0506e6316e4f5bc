#!/bin/bash
# quota.sh -- quotas of the export's file system, in a guest, because few kernels have both kinds: they hold for
# callers over all front ends, users see theirs, and a server that may not read quotas has none to show. The file
# systems are a tmpfs with quotas of users (Linux 6.6) and an EXT4 with a quota of a project.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"

dafs=${DAFS:-../../target/debug/dafs}
[[ -x $dafs ]] || { echo "there is no $dafs; build it with: cargo build"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/host/scripts/e2e"
chmod 755 "$tmp" "$tmp/host"
install -m 755 "$dafs" "$tmp/host/dafs"
cp ../../scripts/e2e/lib.sh "$tmp/host/scripts/e2e"
gcc -O1 -Wall -Wextra -Werror -static -o "$tmp/host/quota" guest/quota.c
truncate -s 64M "$tmp/host/image"
mkfs.ext4 -q -O quota,project -I 256 "$tmp/host/image"
../lab.sh run -t 400 -m 1024 -s "$tmp/host" -k "$tmp/kernel.log" guest/quota || {
    status=$?
    tail -n 20 "$tmp/kernel.log"
    exit "$status"
}
