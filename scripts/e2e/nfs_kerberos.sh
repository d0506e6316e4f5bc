#!/bin/bash
# The commands prove their user to an NFS server by Kerberos, with a KDC of this test: with a ticket of the user's
# cache, and with a keytab; each failure says what to do.
source "$(dirname "$0")/lib.sh"

source scripts/e2e/realm.sh

step "a server"
mkdir "$work/export"
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
