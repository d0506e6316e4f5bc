#!/bin/bash
# TLS from the command line: an authority, a server and a client machine; copies through TLS by every
# version of NFS; refusals without it; metrics; a renewal under a running server; a client that loses its
# trust; a server that is killed under a reader.
source "$(dirname "$0")/lib.sh"

step "an authority and certificates"
pki=$work/pki
"$dafs" pki init "$pki" >"$work/said"
grep -q "dafs pki server $pki" "$work/said" || fail "the next step is not told"
"$dafs" pki server "$pki" nas 127.0.0.1 >"$work/said"
grep -q 'certificate = "nas.pem"' "$work/said" || fail "the configuration is not told"
"$dafs" pki client "$pki" host7 >"$work/said"
grep -q "scp -p $pki/host7.pem" "$work/said" || fail "the copy is not told"
expect 2 'nothing is overwritten' "$dafs" pki client "$pki" host7
for key in ca-key nas-key host7-key; do
    [[ $(stat -c %a "$pki/$key.pem") == 600 ]] || fail "the mode of $key.pem"
done

step "a server whose export demands mtls"
one_export 'name = "data"' 'path = "export"' 'squash = "none"' 'unprivileged_ports = true' \
    'transport_security = "mtls"' '[nfs]' 'listen = ["127.0.0.1:0"]' \
    '[tls]' 'certificate = "pki/nas.pem"' 'key = "pki/nas-key.pem"' 'authorities = "pki/ca.pem"'
sed -i '1i metrics_listen = "127.0.0.1:0"\nmetrics_transport_security = "mtls"' "$work/dafs.toml"
serve --config "$work/dafs.toml"
tcp=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
[[ $tcp ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
"$dafs" doctor --config "$work/dafs.toml" >"$work/said" || true
grep -q 'tls .* is valid for 39[67] days' "$work/said" || { cat "$work/said"; fail "doctor"; }

tls="xprtsec=tls&ca=$pki/ca.pem"
mtls="xprtsec=mtls&ca=$pki/ca.pem&cert=$pki/host7.pem&key=$pki/host7-key.pem"
head -c 5000001 /dev/urandom >"$work/file"
for version in 3 4.1 4.2; do
    step "there and back by version $version"
    "$dafs" put "$work/file" "nfs://$tcp/data/copy?vers=$version&$mtls"
    same "$work/file" "$work/export/copy" "the files"
    "$dafs" cat "nfs://$tcp/data/copy?vers=$version&$mtls" >"$work/back"
    same "$work/file" "$work/back" "the files"
    step "no way without by version $version"
    for query in "vers=$version" "vers=$version&$tls"; do
        ! "$dafs" --deadline 3 cat "nfs://$tcp/data/copy?$query" >"$work/back" 2>"$work/said" ||
            fail "the export let $query in"
        [[ ! -s $work/back ]] || fail "something was read"
    done
done
grep -q 'transport_security = "mtls" and' "$log" || { cat "$log"; fail "the log does not tell why"; }
grep -q 'TLS is on.*level=mtls' "$log" || { cat "$log"; fail "the log does not tell of TLS"; }

step "metrics for scrapers with a certificate alone"
metrics=$(sed -n 's|.*metrics at \(https://[^ ]*\)|\1|p' "$log")
scrape() { curl --silent --show-error --max-time 20 --cacert "$pki/ca.pem" "$@" "$metrics"; }
scrape --cert "$pki/host7.pem" --key "$pki/host7-key.pem" >"$work/said"
tail -n 1 "$work/said" | grep '^# EOF' >/dev/null || { cat "$work/said"; fail "the metrics do not end"; }
[[ $(scrape --output "$work/said" --write-out '%{http_code}') == 403 ]] || fail "a stranger was let in"
! grep -q '^# EOF' "$work/said" || fail "a stranger got the metrics"
! curl --silent --max-time 20 "http${metrics#https}" >"$work/said" || fail "there was an answer in the clear"

step "a server of another name, or of another authority"
"$dafs" pki init "$work/other" >/dev/null
expect 3 'certificate is refused' "$dafs" --deadline 3 ls "nfs://$tcp/?xprtsec=tls&ca=$work/other/ca.pem"

step "a renewal while the server runs"
"$dafs" pki server "$pki" nas --renew >/dev/null
eventually grep -q 'changed files of TLS are in use' "$log"
"$dafs" cat "nfs://$tcp/data/copy?$mtls" >"$work/back"
same "$work/file" "$work/back" "the files"

step "a client that is not trusted any more, and a broken file"
cp "$pki/ca.pem" "$work/ca.pem"
cat "$work/other/ca.pem" >"$pki/ca.pem"
other_ca="xprtsec=mtls&ca=$work/ca.pem&cert=$pki/host7.pem&key=$pki/host7-key.pem"
is_refused() { ! "$dafs" --deadline 3 cat "nfs://$tcp/data/copy?$other_ca"; }
eventually is_refused
: >"$pki/ca.pem"
eventually grep -q 'changed files of TLS are not used.*is empty' "$log"
cat "$work/ca.pem" >"$pki/ca.pem"
eventually "$dafs" --deadline 3 cat "nfs://$tcp/data/copy?$mtls"

step "a server that is killed while a client reads"
head -c 300000000 /dev/urandom >"$work/export/large"
"$dafs" cat "nfs://$tcp/data/large?$mtls" >"$work/large" &
reader=$!
started+=("$reader")
is_reading() { [[ $(stat -c %s "$work/large" 2>/dev/null || echo 0) -gt 1000000 ]]; }
eventually is_reading
kill -9 "$server"
wait "$server" 2>/dev/null || true
sed -i "/^\[nfs\]/,/^\[tls\]/s/127.0.0.1:0/$tcp/" "$work/dafs.toml"
serve --config "$work/dafs.toml"
wait "$reader" || fail "the client did not survive the restart"
same "$work/export/large" "$work/large" "the files"
