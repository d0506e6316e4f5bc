# shellcheck shell=bash
# realm.sh -- a Kerberos realm for the tests of this folder, which source it through nfs.sh. `start_realm` starts a
# KDC on 10.0.2.2; the files are in $work/out/realm, so guests see them as /out/realm:
#
#   krb5.conf           for guests and host
#   server.keytab       nfs/ and dafs/ of host.test.dafs, the server's name
#   labN.keytab         host/ of guest N, for N of 1, 2, 99 and 100
#   anna.keytab ...     users: anna is user 1000, bert 1001
#
# Invariants
# * The realm is in the namespaces of `lab.sh net`; nothing of the machine's own Kerberos is read or changed.


start_realm() {
    local program user number
    for program in krb5kdc kdb5_util kadmin.local kinit; do
        command -v "$program" >/dev/null || skip "no $program; try: scripts/setup.sh test"
    done
    realm=$work/out/realm
    mkdir "$realm"
    cat >"$realm/krb5.conf" <<END
[libdefaults]
    default_realm = TEST.DAFS
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    clockskew = 5
    qualify_shortname = ""
[realms]
    TEST.DAFS = {
        kdc = 10.0.2.2
    }
[domain_realm]
    .test.dafs = TEST.DAFS
END
    cat >"$work/kdc.conf" <<END
[kdcdefaults]
    kdc_listen = 10.0.2.2:88
    kdc_tcp_listen = 10.0.2.2:88
[realms]
    TEST.DAFS = {
        database_name = $work/principal
        key_stash_file = $work/stash
        acl_file = $work/acl
        supported_enctypes = aes256-sha2:normal aes256-cts:normal aes128-cts:normal
    }
[logging]
    kdc = FILE:$work/kdc.log
END
    export KRB5_CONFIG=$realm/krb5.conf KRB5_KDC_PROFILE=$work/kdc.conf
    kdb5_util create -s -P master -r TEST.DAFS >"$work/realm.log" 2>&1
    {
        for number in 1 2 99 100; do
            echo "addprinc -randkey host/lab$number.test.dafs"
            echo "ktadd -k $realm/lab$number.keytab host/lab$number.test.dafs"
        done
        echo "addprinc -randkey nfs/host.test.dafs"
        echo "ktadd -k $realm/server.keytab nfs/host.test.dafs"
        for user in anna bert; do
            echo "addprinc -randkey $user"
            echo "ktadd -norandkey -k $realm/$user.keytab $user"
        done
    } | administer
    krb5kdc -n >>"$work/realm.log" 2>&1 &
    started+=("$!")
    answers() { (exec 3<>/dev/tcp/10.0.2.2/88) 2>/dev/null; }
    eventually 30 answers
}

# The part of the server's configuration. Root of the guests is root, as with AUTH_SYS.
kerberos_rules() {
    cat <<'END'
[kerberos]
keytab = "out/realm/server.keytab"
host = "host.test.dafs"
[[identity]]
match = "host/*@TEST.DAFS"
user = 0
gid = 0
[[identity]]
match = "anna@TEST.DAFS"
user = 1000
gid = 1000
[[identity]]
match = "bert@TEST.DAFS"
user = 1001
gid = 1001
END
}

# administer -- gives the lines of standard input to kadmin.local.
administer() {
    kadmin.local -p admin -r TEST.DAFS >>"$work/realm.log" 2>&1
    ! grep -E ' while |nknown' "$work/realm.log" || fail "the realm cannot be set up"
}

# ticket USER N [OPTION...] -- gets a ticket for guest N, where `as USER` uses it; options of kinit.
ticket() {
    local user=$1 number=$2
    shift 2
    kinit -k -t "$realm/$user.keytab" -c "FILE:$work/out/$user.$number.cache" "$@" "$user"
    guest "$number" "take_ticket $user"
}

# make_certificates -- an authority, and certificates of the server and of the guests, in $work/out/pki.
make_certificates() {
    local dafs=${DAFS:-$lab/../target/debug/dafs}
    "$dafs" pki init "$work/out/pki"
    "$dafs" pki server "$work/out/pki" host.test.dafs "$address"
    "$dafs" pki client "$work/out/pki" guests.test.dafs
    # It has the authority's key, which no guest needs.
    mv "$work/out/pki/ca-key.pem" "$work/"
}
tls_files() {
    cat <<'END'
[tls]
certificate = "out/pki/host.test.dafs.pem"
key = "out/pki/host.test.dafs-key.pem"
authorities = "out/pki/ca.pem"
END
}
