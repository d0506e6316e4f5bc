#!/bin/bash
# doctor.sh -- the findings of `dafs doctor` in a guest: with both soft RDMA devices, through which
# it must move data, with too little locked memory, and without the right to use a device. Also
# checks that no server starts on siw, no DAFS client uses it, and none chooses either device by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"

dafs=${DAFS:-../../target/debug/dafs}
[[ -x $dafs ]] || { echo "there is no $dafs; build it with: cargo build"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/host"
cp "$dafs" "$tmp/host/dafs"
../lab.sh run -t 120 -s "$tmp/host" -k "$tmp/kernel.log" guest/doctor
