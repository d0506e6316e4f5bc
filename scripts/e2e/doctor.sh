#!/bin/bash
# The findings of `dafs doctor`, here and in a process with too low limits.
source "$(dirname "$0")/lib.sh"

step "this host"
# A device of this host may have a problem of its own; the transports have none.
status=0
"$dafs" doctor >"$work/said" || status=$?
[[ $status == 0 || $status == 1 ]] || fail "status $status"
for transport in shm iwarp; do
    grep -Eq "^ok +transport +$transport .* works: round trip [0-9.]+ us" "$work/said" ||
        { cat "$work/said"; fail "$transport does not work"; }
done
problems=$(grep -c '^PROBLEM' "$work/said" || true)
[[ $((problems > 0)) == "$status" ]] || { cat "$work/said"; fail "status $status with $problems problems"; }

step "problems alone"
"$dafs" doctor --quiet >"$work/said" || true
! grep -qE '^(ok|note) ' "$work/said" || fail "something without a problem is shown"
"$dafs" doctor --json >"$work/said" || true
grep -q '"findings":\[.*"round_trip_microseconds":[0-9]' "$work/said" || fail "no measurement"
# Servers of others on this host come and go, so the findings differ from those above.
problems=$({ grep -o '"level":"problem"' "$work/said" || true; } | wc -l)
grep -q "\"problems\":$problems" "$work/said" || { cat "$work/said"; fail "not $problems problems"; }

step "too few descriptors"
expect 1 'does not work' bash -c "ulimit -n 8; exec '$dafs' doctor"
expect 1 '"level":"problem"' bash -c "ulimit -n 8; exec '$dafs' doctor --json"

step "command lines"
expect 2 'means nothing to doctor' "$dafs" doctor --transport shm
expect 2 'unexpected argument' "$dafs" doctor dafs://localhost

step "the configuration of a server with Kerberos"
printf '[libdefaults]\n    default_realm = TEST.DAFS\n    dns_lookup_kdc = false\n    dns_canonicalize_hostname = false\n' \
    >"$work/krb5.conf"
export KRB5_CONFIG=$work/krb5.conf
# keytab FILE PRINCIPAL ENCTYPE
keytab() {
    rm -f "$1"
    printf '%s\n' "addent -password -p $2 -k 1 -e $3" secret "wkt $1" q | ktutil >/dev/null
}
cat >"$work/kerberos.toml" <<END
[kerberos]
keytab = "server.keytab"
host = "localhost"
realm = "TEST.DAFS"
[[identity]]
match = "backup/*@TEST.DAFS"
user = "daemon"
[[export]]
name = "data"
path = "."
sec = ["krb5p"]
END
doctor=("$dafs" doctor --config "$work/kerberos.toml")
kerberos_says() {
    "${doctor[@]}" >"$work/said" || true
    grep kerberos "$work/said" >"$work/kerberos"
    grep -qF -e "$1" "$work/kerberos" || { cat "$work/said"; fail "does not say '$1'"; }
}
expect 1 'does not exist; write it: kadmin ktadd' "${doctor[@]}"
: >"$work/server.keytab"
kerberos_says 'holds no keys'
keytab "$work/server.keytab" nfs/other@TEST.DAFS aes256-cts-hmac-sha1-96
kerberos_says 'no key of nfs/localhost@REALM, but of nfs/other@TEST.DAFS'
keytab "$work/server.keytab" nfs/localhost@TEST.DAFS camellia256-cts-cmac
kerberos_says 'no key of nfs/localhost@REALM has an encryption type with AES'
keytab "$work/server.keytab" nfs/localhost@TEST.DAFS aes256-cts-hmac-sha1-96
kerberos_says 'has keys of nfs@localhost'
! grep PROBLEM "$work/kerberos" || fail "a problem in what is right"
for line in 'daemon@TEST.DAFS is user 1,' 'backup/h@TEST.DAFS is user 1, .*by the rule for backup/\*@TEST.DAFS' \
    'root@EVIL is nobody' 'daemon/admin@TEST.DAFS is nobody'; do
    "${doctor[@]}" --principal "${line%% *}" >"$work/said" || true
    grep -q "^ok *principal *$line" "$work/said" || { cat "$work/said"; fail "not: $line"; }
done
expect 2 'the following required arguments were not provided' "$dafs" doctor --principal anna@TEST.DAFS
expect 2 "$work/none.toml" "$dafs" doctor --config "$work/none.toml"
