#!/bin/bash
# TLS of a cluster: the control connection between its servers, recorded on its way, shows no content; a
# data server in a process of its own serves clients in TLS by certificates of its own, and the
# metadata server's demands hold there.
source "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "there is no python3"

pki=$work/pki
"$dafs" cluster init --secret "$work/secret"
"$dafs" pki init "$pki" >/dev/null
"$dafs" pki server "$pki" nas 127.0.0.1 >/dev/null
"$dafs" pki client "$pki" host7 >/dev/null
tls="xprtsec=tls&ca=$pki/ca.pem"
mtls="xprtsec=mtls&ca=$pki/ca.pem&cert=$pki/host7.pem&key=$pki/host7-key.pem"
in_clear=(--cluster-secret "$work/secret" "$work/data1")
in_tls=(--certificate "$pki/nas.pem" --key "$pki/nas-key.pem" --authorities "$pki/ca.pem" "${in_clear[@]}")

# record TARGET FILE -- passes connections on to TARGET and keeps their bytes in FILE; sets `way`, the
# address for them.
record() {
    python3 scripts/e2e/record.py "$1" "$2" >"$2.address" &
    started+=("$!")
    eventually test -s "$2.address"
    way=$(cat "$2.address")
}

data 1 "${in_tls[@]}"
record "${control[1]}" "$work/control.bytes"
mkdir "$work"/{names,plain}
[[ $(id -u) != 0 ]] || chmod 777 "$work"/{names,plain}
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[cluster]
secret = "secret"
[tls]
certificate = "pki/nas.pem"
key = "pki/nas-key.pem"
authorities = "pki/ca.pem"
[[export]]
name = "plain"
path = "plain"
squash = "none"
unprivileged_ports = true
[[export]]
name = "wide"
path = "names"
squash = "none"
unprivileged_ports = true
transport_security = "mtls"
stripe_bytes = 65536
[[export.node]]
number = 1
control = "$way"
END
serve --config "$work/dafs.toml"
tcp=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
all_there() { "$dafs" cluster status --state-directory "$work/state"; }
eventually all_there

step "a record of the control connection shows no content"
marker="a content that nobody else may read"
yes "$marker" | head -c 1000000 >"$work/file" || true
"$dafs" put "$work/file" "nfs://$tcp/wide/one?pnfs=no&$mtls"
"$dafs" get "nfs://$tcp/wide/one?pnfs=no&$mtls" "$work/back"
same "$work/file" "$work/back" "what was written and what came back"
[[ $(stat -c %s "$work/control.bytes") -gt 2000000 ]] || fail "the content did not go by the control connection"
! grep -qF "$marker" "$work/control.bytes" || fail "the content is in the clear"
# The same search finds it where there is no TLS.
record "$tcp" "$work/clear.bytes"
"$dafs" put "$work/file" "nfs://$way/plain/one"
grep -qF "$marker" "$work/clear.bytes" || fail "the search finds nothing"

step "clients in TLS use the data server, and no others do"
used() { counted "${data_log[1]}" "$1"; }
[[ $(used dafs_data_tls_connections_total) == 0 ]] || fail "a client was there before"
"$dafs" put "$work/file" "nfs://$tcp/wide/two?pnfs=yes&$mtls"
"$dafs" get "nfs://$tcp/wide/two?pnfs=yes&$mtls" "$work/back.2"
same "$work/file" "$work/back.2" "what was written and what came back"
[[ $(used dafs_data_tls_connections_total) -ge 1 && $(used dafs_data_received_bytes_total) -gt 1000000 ]] ||
    fail "the data server has served no client in TLS"
for query in '' "?$tls"; do
    ! "$dafs" --deadline 3 cat "nfs://$tcp/wide/two$query" >"$work/nothing" 2>/dev/null || fail "the export let '$query' in"
    [[ ! -s $work/nothing ]] || fail "something was read"
done

step "a data server without a certificate is done without"
kill_data 1
data 1 "${in_clear[@]}"
eventually all_there
"$dafs" get "nfs://$tcp/wide/two?$mtls" "$work/back.3"
same "$work/file" "$work/back.3" "what was written and what came back"
[[ $(used dafs_data_tls_connections_total) == 0 ]] || fail "it has a certificate"

step "wrong command lines"
expect 2 'certificate' "$dafs" serve --role data --key "$pki/nas-key.pem" "${in_clear[@]}"
expect 2 'is for data servers' "$dafs" serve "$work/plain" --certificate a --key b
stop_server
