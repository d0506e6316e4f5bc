#!/bin/bash
# DAFS inside TLS from the command line: a tree there and back with a principal of Kerberos, and a capture of the wire
# that shows none of it; exports that are closed in the clear; passwords; a server of another name; clients that lose
# their trust.
source "$(dirname "$0")/lib.sh"

command -v dumpcap >/dev/null || skip "nothing to capture with: dumpcap is not installed (tshark)"
if [[ -z ${DAFS_E2E_NETWORK:-} ]]; then
    is_root || skip "needs root, to capture"
    unshare -n true 2>/dev/null || skip "this user may not make a network"
    DAFS_E2E_NETWORK=1 exec unshare -n "$0" "$@"
fi
ip link set lo up
source scripts/e2e/realm.sh

step "a server with a certificate, and exports that demand tls and mtls"
pki=$work/pki
"$dafs" pki init "$pki" >/dev/null
"$dafs" pki server "$pki" localhost >/dev/null
"$dafs" pki client "$pki" host7 >/dev/null
mkdir -m 777 "$work/open" "$work/closed" "$work/mutual"
marker='marker-4f1d9c7e'
echo "$marker-password" | "$dafs" passwd "$work/users" berta --uid 0 --gid 0
configure() {
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
password_file = "users"
trusted = []
$1
[nfs]
listen = []
rdma_listen = ["127.0.0.1:0"]
[kerberos]
keytab = "server.keytab"
host = "localhost"
[tls]
certificate = "pki/localhost.pem"
key = "pki/localhost-key.pem"
authorities = "pki/ca.pem"
[[identity]]
match = "anna@E2E.DAFS"
user = $(id -u)
gid = $(id -g)
[[export]]
name = "open"
path = "open"
squash = "none"
[[export]]
name = "closed"
path = "closed"
squash = "none"
unprivileged_ports = true
transport_security = "tls"
[[export]]
name = "mutual"
path = "mutual"
squash = "none"
unprivileged_ports = true
transport_security = "mtls"
END
}
configure ''
serve --config "$work/dafs.toml"
port=${url##*:}
clear=dafs://localhost:$port secure=dafss://localhost:$port
gss="sec=gss&ca=$pki/ca.pem"
mtls="$gss&cert=$pki/host7.pem&key=$pki/host7-key.pem"
kinit -k -t "$work/anna.keytab" anna

step "a tree whose names and content have a marker"
mkdir -p "$work/tree/$marker-folder"
for number in 1 2 3; do
    { head -c 50000 /dev/urandom; echo "$marker-content"; head -c 1000000 /dev/urandom; } \
        >"$work/tree/$marker-folder/$marker-$number"
done

# captured COMMAND... -- runs a command while all packets of this network are captured, into $work/capture. A name in
# the clear ends the capture, so that nothing from before it is missing.
captured() {
    local end=end-$RANDOM$RANDOM
    rm -f "$work/capture"
    dumpcap -q -i lo -w "$work/capture" 2>"$work/dumpcap" &
    local capture=$!
    started+=("$capture")
    is_capturing() { [[ -s $work/capture ]] || ! kill -0 "$capture"; }
    eventually is_capturing
    kill -0 "$capture" 2>/dev/null || { cat "$work/dumpcap"; skip "this machine lets root capture nothing"; }
    "$@"
    is_over() {
        "$dafs" --transport iwarp ls "$clear/open/$end?sec=gss" 2>/dev/null || true
        grep -aq "$end" "$work/capture"
    }
    eventually is_over
    kill -INT "$capture"
    wait "$capture" || true
}
there_and_back() {
    rm -rf "$work/back"
    "$dafs" --transport iwarp put "$work/tree" "$1/open/tree?$2"
    "$dafs" --transport iwarp get "$1/open/tree?$2" "$work/back"
    diff -r "$work/tree" "$work/back" || fail "the trees differ"
    "$dafs" --transport iwarp rm -r "$1/open/tree?$2"
    local rest=${2#sec=gss}
    DAFS_PASSWORD=$marker-password "$dafs" --transport iwarp --user berta ls "$1/open${rest:+?${rest#&}}" >/dev/null
}

step "without TLS the capture shows names, content and a password"
captured there_and_back "$clear" sec=gss
for word in "$marker-folder" "$marker-content" "$marker-password"; do
    grep -aq "$word" "$work/capture" || fail "the capture lacks $word, so it proves nothing"
done

step "inside TLS it shows nothing of them"
captured there_and_back "$secure" "$gss"
! grep -aq "$marker" "$work/capture" || fail "the wire shows a name, content or the password"
grep -q 'TLS is on.*level=tls' "$log" || { cat "$log"; fail "the log does not tell of TLS"; }

step "who one is, and how the connection is protected"
"$dafs" ping "$secure?$gss" >"$work/said"
grep -q 'TLS 1.3 with AES' "$work/said" && grep -q 'you are anna@E2E.DAFS, proven by Kerberos' "$work/said" ||
    { cat "$work/said"; fail "ping"; }

step "exports that demand tls and mtls"
echo hello >"$work/hello"
expect 1 'ACCES' "$dafs" --transport iwarp put "$work/hello" "$clear/closed/hello?sec=gss"
grep -q 'demands transport_security.*let the client use dafss' "$log" || { cat "$log"; fail "the log has no remedy"; }
"$dafs" put "$work/hello" "$secure/closed/hello?$gss"
same "$work/hello" "$work/closed/hello" "the files"
expect 1 'ACCES' "$dafs" put "$work/hello" "$secure/mutual/hello?$gss"
"$dafs" put "$work/hello" "$secure/mutual/hello?$mtls"
same "$work/hello" "$work/mutual/hello" "the files"

step "NFS over iWARP inside TLS"
rdma=$(sed -nE 's/.*NFS over RDMA.*address=([0-9.]*:[0-9]+).*/\1/p' "$log" | head -n 1)
[[ $rdma ]] || { cat "$log"; fail "the log does not say where NFS over RDMA is served"; }
nfs=nfs+rdma://localhost:${rdma##*:}
for version in 3 4.2; do
    expect 0 hello "$dafs" cat "$nfs/closed/hello?vers=$version&xprtsec=tls&ca=$pki/ca.pem"
    expect 0 hello "$dafs" cat "$nfs/mutual/hello?vers=$version&xprtsec=mtls&${mtls#*&}"
    ! "$dafs" --deadline 3 cat "$nfs/closed/hello?vers=$version&transport=iwarp" >"$work/said" 2>&1 ||
        fail "the export let NFS over RDMA in without TLS"
done
head -c 5000001 /dev/urandom >"$work/file"
"$dafs" put "$work/file" "$nfs/closed/file?xprtsec=tls&ca=$pki/ca.pem"
same "$work/file" "$work/closed/file" "the files"
expect 3 'no_application_protocol' "$dafs" ls "dafss://localhost:${rdma##*:}/?$gss"

step "a server of another name, of another authority, and one without TLS"
expect 3 'not for 127.0.0.1' "$dafs" ls "dafss://127.0.0.1:$port/?$gss"
"$dafs" pki init "$work/other" >/dev/null
expect 3 'certificate is refused' "$dafs" ls "$secure/?ca=$work/other/ca.pem"
expect 2 'without dafss://' "$dafs" ls "$clear/?ca=$pki/ca.pem"
expect 2 'transport=shm with TLS' "$dafs" ls "$secure/?transport=shm"

step "a password inside TLS"
DAFS_PASSWORD=$marker-password expect 0 hello "$dafs" --user berta cat "$secure/closed/hello?ca=$pki/ca.pem"

step "a password in the clear from another host"
other_network
ip link add here type veth peer name own netns "$elsewhere"
ip addr add 192.0.2.1/24 dev here
ip link set here up
there=(nsenter -t "$elsewhere" -n)
"${there[@]}" ip addr add 192.0.2.2/24 dev own
"${there[@]}" ip link set own up
kill "$server"
wait "$server" || true
from_there() { DAFS_PASSWORD=$marker-password expect "$1" "$2" "${there[@]}" "$dafs" --user berta cat "dafs://192.0.2.1:$port/open/hello$3"; }
cp "$work/hello" "$work/open/hello"
sed -i "1s/127.0.0.1:0/0.0.0.0:$port/" "$work/dafs.toml"
serve --config "$work/dafs.toml"
from_there 3 'sends no password in clear text' ''
! grep -q 'came in clear text' "$log" || fail "the password was sent"
from_there 3 'NOTSUPP' '?danger-clear-passwords=yes'
eventually grep -q 'a password came in clear text over the network' "$log"
kill "$server"
wait "$server" || true
configure 'danger_allow_dafs_passwords_in_clear = "anyone on the network between can read these passwords"'
sed -i "1s/127.0.0.1:0/0.0.0.0:$port/" "$work/dafs.toml"
serve --config "$work/dafs.toml"
from_there 0 hello '?danger-clear-passwords=yes'

step "a client that is not trusted any more"
cp "$pki/ca.pem" "$work/ca.pem"
cp "$work/other/ca.pem" "$pki/ca.pem.new"
old="sec=gss&ca=$work/ca.pem&cert=$pki/host7.pem&key=$pki/host7-key.pem"
expect 0 hello "$dafs" cat "$secure/mutual/hello?$old"
mv "$pki/ca.pem.new" "$pki/ca.pem"
is_refused() { ! "$dafs" cat "$secure/mutual/hello?$old" >"$work/said" 2>&1 && grep -q ACCES "$work/said"; }
eventually is_refused
