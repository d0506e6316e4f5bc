//! Remedies for errors of Kerberos.

/// The first number of the errors of Kerberos (krb5.h).
const KERBEROS: i32 = -1_765_328_384;

/// KG_KEYTAB_NOMATCH, of the library's own errors.
const KEYTAB_WITHOUT_KEY: u32 = 39_756_033;

/// GSS_S_NO_CRED (RFC 2744 3.9.1).
const NO_CREDENTIAL: u32 = 7 << 16;

/// GSS_S_CREDENTIALS_EXPIRED (RFC 2744 3.9.1).
const EXPIRED: u32 = 11 << 16;

/// GSS_S_CONTEXT_EXPIRED (RFC 2744 3.9.1): the ticket has ended while the context was established.
const CONTEXT_EXPIRED: u32 = 12 << 16;

const NO_TICKET: &str = "get a ticket: kinit, or name a client keytab";
const NO_SERVICE_KEY: &str = "put the keys of the service into the keytab: kadmin ktadd -k KEYTAB \
                              SERVICE/HOST, and see with klist -k KEYTAB whether they are there";
const STALE_KEY: &str = "the keytab and the KDC have different keys of the service: write the keytab anew \
                         (kadmin ktadd), and let clients get new tickets (kinit)";
const UNKNOWN_SERVICE: &str = "the KDC does not know this service: kadmin addprinc -randkey SERVICE/HOST, \
                               with the name of the host that clients use";
const NO_KDC: &str =
    "no KDC answers: look at [realms] in /etc/krb5.conf, at the network and at the KDC";

/// Returns the remedy for a status, if there is one.
pub(super) fn remedy(major: u32, minor: u32) -> Option<&'static str> {
    Some(match minor.cast_signed().wrapping_sub(KERBEROS) {
        // KDC_ERR_C_PRINCIPAL_UNKNOWN
        6 => "the KDC does not know this client principal: look at its spelling and its realm",
        // KDC_ERR_S_PRINCIPAL_UNKNOWN
        7 => UNKNOWN_SERVICE,
        // KDC_ERR_ETYPE_NOSUPP
        14 => {
            "the KDC, the client and the service have no encryption type in common: look at \
               permitted_enctypes in krb5.conf and at the keys of the service"
        }
        // KDC_ERR_PREAUTH_FAILED
        24 => "the password or the client keytab is not that of the principal",
        // KRB_AP_ERR_BAD_INTEGRITY, KRB_AP_ERR_MODIFIED, KRB_AP_ERR_BADKEYVER
        31 | 41 | 44 => STALE_KEY,
        // KRB_AP_ERR_TKT_EXPIRED
        32 => "the ticket has ended: kinit",
        // KRB_AP_ERR_TKT_NYV, KRB_AP_ERR_SKEW, KRB5_KDCREP_SKEW
        33 | 37 | 148 => {
            "the clocks of the two hosts differ by more than five minutes: set them (NTP)"
        }
        // KRB_AP_ERR_NOT_US, KRB_AP_WRONG_PRINC
        35 | 144 => {
            "the ticket is for another service: use the name of the host that is in the keytab"
        }
        // KRB5_CC_NOTFOUND, KRB5_FCC_NOFILE
        141 | 195 => NO_TICKET,
        // KRB5_CONFIG_CANTOPEN, KRB5_CONFIG_BADFORMAT, KRB5_REALM_UNKNOWN, KRB5_CONFIG_NODEFREALM
        135 | 136 | 154 | 224 => {
            "name the realm and its KDC in /etc/krb5.conf (default_realm, [realms])"
        }
        // KRB5_KDC_UNREACH, KRB5_REALM_CANT_RESOLVE
        156 | 220 => NO_KDC,
        // KRB_AP_ERR_NOKEY, KRB5_KT_NOTFOUND, KRB5_KT_KVNONOTFOUND
        45 | 181 | 230 => NO_SERVICE_KEY,
        _ if minor == KEYTAB_WITHOUT_KEY => NO_SERVICE_KEY,
        _ if major == NO_CREDENTIAL => NO_TICKET,
        _ if major == EXPIRED || major == CONTEXT_EXPIRED => "the ticket has ended: kinit",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of krb5.h, most of which no test can make the library return.
    #[test]
    fn errors_of_kerberos_have_remedies() {
        for (minor, want) in [
            (-1_765_328_377_i32, "does not know this service"),
            (-1_765_328_370, "no encryption type in common"),
            (-1_765_328_352, "the ticket has ended"),
            (-1_765_328_347, "clocks"),
            (-1_765_328_340, "different keys"),
            (-1_765_328_243, "kinit"),
            (-1_765_328_230, "name the realm"),
            (-1_765_328_228, "no KDC answers"),
            (-1_765_328_203, "into the keytab"),
            (-1_765_328_189, "kinit"),
            (-1_765_328_164, "no KDC answers"),
            (-1_765_328_160, "name the realm"),
        ] {
            let found = remedy(0xd_0000, minor.cast_unsigned());
            assert!(found.is_some_and(|text| text.contains(want)), "{minor}: {found:?}");
        }
        assert_eq!(remedy(0xd_0000, 5), None);
        assert_eq!(remedy(EXPIRED, 0), remedy(0, KERBEROS.wrapping_add(32).cast_unsigned()));
        assert_eq!(remedy(CONTEXT_EXPIRED, 100_001), remedy(EXPIRED, 0));
        assert_eq!(remedy(NO_CREDENTIAL, 0), Some(NO_TICKET));
    }
}
