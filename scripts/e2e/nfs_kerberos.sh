#!/bin/bash
# The commands prove their user to an NFS server by Kerberos, with a KDC of this test: with a ticket of the user's
# cache, and with a keytab; each failure says what to do.
source "$(dirname "$0")/lib.sh"

PATH=$PATH:/usr/sbin:/sbin
for program in kdb5_util kadmin.local krb5kdc kinit; do
    command -v "$program" >/dev/null || skip "no Kerberos realm to test with: $program is not installed"
done

step "a realm"
kdc=$work/kdc
mkdir "$kdc" "$work/export"
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
realm_at() {
    cat >"$kdc/krb5.conf" <<END
[libdefaults]
default_realm = E2E.DAFS
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
qualify_shortname = ""
[realms]
E2E.DAFS = {
kdc = 127.0.0.1:$1
}
[domain_realm]
localhost = E2E.DAFS
END
    cat >"$kdc/kdc.conf" <<END
[kdcdefaults]
kdc_listen = 127.0.0.1:$1
kdc_tcp_listen = 127.0.0.1:$1
[realms]
E2E.DAFS = {
database_name = $kdc/principal
key_stash_file = $kdc/stash
acl_file = $kdc/acl
max_life = 1h
}
END
}
export KRB5_CONFIG=$kdc/krb5.conf KRB5_KDC_PROFILE=$kdc/kdc.conf KRB5CCNAME=FILE:$work/tickets
realm_at 88
kdb5_util create -s -P master -r E2E.DAFS >"$kdc/log" 2>&1 || { cat "$kdc/log"; fail "no database"; }
kadmin.local -p admin -r E2E.DAFS >"$kdc/log" 2>&1 <<END || { cat "$kdc/log"; fail "no principals"; }
addprinc -randkey nfs/localhost
ktadd -k $work/server.keytab nfs/localhost
addprinc -pw secret anna
ktadd -norandkey -k $work/anna.keytab anna
END
is_decided() { [[ -s $kdc/pid ]] || ! kill -0 "$running"; }
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -f "$kdc/pid"
    realm_at "$(free_port)"
    krb5kdc -n -P "$kdc/pid" >"$kdc/log" 2>&1 &
    running=$!
    started+=("$running")
    eventually is_decided
    [[ ! -s $kdc/pid ]] || break
done
[[ -s $kdc/pid ]] || { cat "$kdc/log"; fail "the KDC did not start"; }

step "a server"
user=$(id -u)
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["127.0.0.1:0"]
[kerberos]
keytab = "$work/server.keytab"
host = "localhost"
[[identity]]
match = "anna@E2E.DAFS"
user = $user
gid = $(id -g)
[[export]]
name = "files"
path = "$work/export"
squash = "none"
sec = ["krb5p", "krb5i", "krb5"]
END
serve --config "$work/dafs.toml"
address=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
[[ $address ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
base=nfs://localhost:${address##*:}/files

step "without a ticket"
expect 3 'kinit' "$dafs" ls "$base?sec=krb5p"
expect 1 'add sec=krb5p' "$dafs" ls "$base?vers=4.2"
expect 1 'add sec=krb5p' "$dafs" ls "$base?vers=3"
cp "$work/anna.keytab" "$work/open.keytab"
chmod 644 "$work/open.keytab"
expect 3 'chmod 600' "$dafs" ls "$base?sec=krb5p&keytab=$work/open.keytab"

head -c 8388608 /dev/urandom >"$work/file"
kinit -k -t "$work/anna.keytab" anna
while read -r query; do
    step "there and back: $query"
    "$dafs" put "$work/file" "$base/file?$query"
    same "$work/file" "$work/export/file" "the files"
    "$dafs" get "$base/file?$query" "$work/back"
    same "$work/file" "$work/back" "the files"
    "$dafs" rm "$base/file?$query"
    rm "$work/back"
done <<END
vers=3&sec=krb5
vers=3&sec=krb5i
vers=3&sec=krb5p
vers=4.1&sec=krb5i
vers=4.2&sec=krb5
vers=4.2&sec=krb5p
vers=4.2&sec=krb5p&keytab=$work/anna.keytab
vers=3&sec=krb5p&keytab=$work/anna.keytab&principal=anna@E2E.DAFS
END

step "who one is"
"$dafs" -v ls "$base?sec=krb5p" 2>"$work/said" >/dev/null
grep -q 'krb5p as anna@E2E.DAFS' "$work/said" || { cat "$work/said"; fail "somebody else"; }

step "wrong input says what to write instead"
expect 2 'add sec=krb5p' "$dafs" ls "$base?keytab=$work/anna.keytab"
expect 2 'krb5, krb5i or krb5p' "$dafs" ls "$base?sec=tls"
expect 3 'does not exist' "$dafs" ls "$base?sec=krb5&keytab=$work/none"
expect 3 'does not know this service' "$dafs" ls "nfs://127.0.0.1:${address##*:}/?sec=krb5"
