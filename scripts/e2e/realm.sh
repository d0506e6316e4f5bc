# shellcheck shell=bash
# Sourced behind lib.sh: a realm E2E.DAFS with a KDC of the test's own. It has the services nfs and dafs of
# localhost in server.keytab, and the user anna in anna.keytab.

PATH=$PATH:/usr/sbin:/sbin
for program in kdb5_util kadmin.local krb5kdc kinit; do
    command -v "$program" >/dev/null || skip "no Kerberos realm to test with: $program is not installed"
done

step "a realm"
kdc=$work/kdc
mkdir "$kdc"
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
addprinc -randkey dafs/localhost
ktadd -k $work/server.keytab nfs/localhost dafs/localhost
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
