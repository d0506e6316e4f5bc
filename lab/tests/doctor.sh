#!/bin/bash
# doctor.sh -- what `dafs doctor` says in a guest: with both soft RDMA devices, which it must get
# data through, with too little memory that may be locked, and without the right to use a device; and
# that no server starts on siw.
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
