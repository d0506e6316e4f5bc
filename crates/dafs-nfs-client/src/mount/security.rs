//! The options of a URL that say how the user is proven.
//!
//! Invariants
//! * Credentials of Kerberos are named only together with a flavour of Kerberos.
//! * A name of a cache or of a principal is text without control characters.

use super::url::{NfsUrlError, VALUE, unescape, wrong};
use dafs_rpc::GssService;
use dafs_wire::nfs4::Security;
use dafs_wire::rpc::AuthFlavor;
use percent_encoding::percent_encode;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A security flavour of NFS (RFC 2623 2.2, RFC 8881 2.2.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SecurityFlavour {
    /// The user is claimed (AUTH_SYS).
    Sys,
    /// The user is proven by Kerberos.
    Krb5,
    /// The same, and nobody can change arguments and results on their way.
    Krb5i,
    /// The same, and nobody can read them.
    Krb5p,
}

impl SecurityFlavour {
    /// All flavours, the strongest first.
    pub const ALL: [Self; 4] = [Self::Krb5p, Self::Krb5i, Self::Krb5, Self::Sys];

    /// The flavour as it is written in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sys => "sys",
            Self::Krb5 => "krb5",
            Self::Krb5i => "krb5i",
            Self::Krb5p => "krb5p",
        }
    }

    /// The service of RPCSEC_GSS; `None` for AUTH_SYS.
    pub fn service(self) -> Option<GssService> {
        match self {
            Self::Sys => None,
            Self::Krb5 => Some(GssService::None),
            Self::Krb5i => Some(GssService::Integrity),
            Self::Krb5p => Some(GssService::Privacy),
        }
    }

    /// The flavour with a number of MOUNT (RFC 2623 2.2.3), if it is one of these.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(match AuthFlavor(number) {
            AuthFlavor::SYS => Self::Sys,
            AuthFlavor::KRB5 => Self::Krb5,
            AuthFlavor::KRB5I => Self::Krb5i,
            AuthFlavor::KRB5P => Self::Krb5p,
            _ => return None,
        })
    }

    /// The flavour of an entry of SECINFO, if it is one of these.
    pub(crate) fn from_secinfo(entry: &Security<'_>) -> Option<Self> {
        use dafs_wire::rpc::gss::KERBEROS_OID;
        match entry {
            Security::Sys => Some(Self::Sys),
            Security::Gss { mechanism, service, .. } if *mechanism == KERBEROS_OID => {
                let service = GssService::from_u32(*service)?;
                Self::from_number(service.kerberos_flavor().0)
            }
            _ => None,
        }
    }
}

impl fmt::Display for SecurityFlavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The security options of a URL; `None` where an option is missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct UrlSecurity {
    /// `sec`: the flavour. Without it the mount has the identity of its options.
    pub flavour: Option<SecurityFlavour>,
    /// `keytab`: a file with the keys of the user.
    pub keytab: Option<PathBuf>,
    /// `ccache`: the name of a cache of tickets, such as `FILE:/tmp/krb5cc_1000`. Without it and
    /// without a keytab tickets come from the user's default cache.
    pub ccache: Option<String>,
    /// `principal`: the user in the keytab; without it the first one there.
    pub principal: Option<String>,
}

impl UrlSecurity {
    /// Takes an option, if it is one of these.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool, NfsUrlError> {
        match name {
            "sec" => self.flavour = Some(flavour(value)?),
            "keytab" => {
                let path = unescape(value)?;
                if path.is_empty() || path.contains(&0) {
                    return Err(wrong("keytab", value, "the path of a file"));
                }
                self.keytab = Some(OsString::from_vec(path).into());
            }
            "ccache" => self.ccache = Some(text("ccache", value)?),
            "principal" => self.principal = Some(text("principal", value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that the options fit each other.
    pub(super) fn check(&self) -> Result<(), NfsUrlError> {
        let is_kerberos = self.flavour.is_some_and(|flavour| flavour.service().is_some());
        let named = [
            ("keytab", self.keytab.is_some()),
            ("ccache", self.ccache.is_some()),
            ("principal", self.principal.is_some()),
        ];
        match named.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if !is_kerberos => Err(NfsUrlError::WithoutKerberos(name)),
            Some(_) if self.keytab.is_some() && self.ccache.is_some() => {
                Err(NfsUrlError::TwoCredentials)
            }
            Some(_) if self.principal.is_some() && self.keytab.is_none() => {
                Err(NfsUrlError::PrincipalAlone)
            }
            _ => Ok(()),
        }
    }

    /// The options with their values, as they are printed.
    pub(super) fn printed(&self) -> [(&'static str, Option<String>); 4] {
        let escaped = |bytes: &[u8]| percent_encode(bytes, VALUE).to_string();
        let text = |value: &Option<String>| value.as_ref().map(|value| escaped(value.as_bytes()));
        let keytab = self.keytab.as_ref().map(|path| escaped(path.as_os_str().as_bytes()));
        [
            ("sec", self.flavour.map(|flavour| flavour.name().to_owned())),
            ("keytab", keytab),
            ("ccache", text(&self.ccache)),
            ("principal", text(&self.principal)),
        ]
    }
}

fn flavour(value: &str) -> Result<SecurityFlavour, NfsUrlError> {
    let found = SecurityFlavour::ALL.into_iter().find(|flavour| flavour.name() == value);
    found.ok_or_else(|| wrong("sec", value, "sys, krb5, krb5i or krb5p"))
}

fn text(option: &'static str, value: &str) -> Result<String, NfsUrlError> {
    let text = String::from_utf8(unescape(value)?).ok();
    let text = text.filter(|text| !text.is_empty() && !text.chars().any(char::is_control));
    text.ok_or_else(|| wrong(option, value, "a name without control characters"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::NfsUrl;
    use proptest::prelude::*;

    fn parsed(query: &str) -> Result<UrlSecurity, String> {
        let url = NfsUrl::parse(&format!("nfs://h/a?{query}"));
        url.map(|url| url.options().security.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        let found = parsed("sec=krb5p&keytab=/etc/a%26b.keytab&principal=backup@EXAMPLE.ORG");
        let expected = UrlSecurity {
            flavour: Some(SecurityFlavour::Krb5p),
            keytab: Some("/etc/a&b.keytab".into()),
            ccache: None,
            principal: Some("backup@EXAMPLE.ORG".to_owned()),
        };
        assert_eq!(found.unwrap(), expected);
        let found = parsed("sec=krb5&ccache=FILE:/tmp/krb5cc_1000").unwrap();
        assert_eq!(found.ccache.as_deref(), Some("FILE:/tmp/krb5cc_1000"));
        assert_eq!(parsed("sec=sys").unwrap().flavour, Some(SecurityFlavour::Sys));
        assert_eq!(parsed("vers=3").unwrap(), UrlSecurity::default());
    }

    #[test]
    fn options_that_do_not_fit_are_refused_with_the_remedy() {
        for (query, part) in [
            ("sec=krb6", "sys, krb5, krb5i or krb5p"),
            ("sec=krb5&keytab=", "the path of a file"),
            ("sec=krb5&keytab=%00", "the path of a file"),
            ("sec=krb5&keytab=%2", "two hexadecimal digits"),
            ("sec=krb5&ccache=a%0Ab", "without control characters"),
            ("sec=krb5&keytab=/k&principal=%FF", "without control characters"),
            ("keytab=/k", "add sec=krb5p"),
            ("sec=sys&ccache=FILE:/c", "add sec=krb5p"),
            ("sec=krb5i&keytab=/k&ccache=FILE:/c", "leave one of them out"),
            ("sec=krb5i&principal=anna", "name a keytab"),
        ] {
            let error = parsed(query).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
    }

    #[test]
    fn flavours_have_their_numbers() {
        for (number, name) in
            [(1, "sys"), (390_003, "krb5"), (390_004, "krb5i"), (390_005, "krb5p")]
        {
            assert_eq!(SecurityFlavour::from_number(number).unwrap().name(), name);
        }
        for number in [0, 2, 6, 390_006] {
            assert_eq!(SecurityFlavour::from_number(number), None);
        }
        let mechanism = &dafs_wire::rpc::gss::KERBEROS_OID[..];
        for (service, flavour) in [(1, "krb5"), (2, "krb5i"), (3, "krb5p")] {
            let entry = Security::Gss { mechanism, quality: 0, service };
            assert_eq!(SecurityFlavour::from_secinfo(&entry).unwrap().name(), flavour);
        }
        let other = Security::Gss { mechanism: b"other", quality: 0, service: 1 };
        for entry in [other, Security::None, Security::Other(390_003)] {
            assert_eq!(SecurityFlavour::from_secinfo(&entry), None);
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(
            keytab in proptest::collection::vec(1u8.., 1..40),
            principal in "[^\\p{Cc}]{1,40}",
        ) {
            let security = UrlSecurity {
                flavour: Some(SecurityFlavour::Krb5i),
                keytab: Some(OsString::from_vec(keytab).into()),
                ccache: None,
                principal: Some(principal),
            };
            let url = NfsUrl::parse("nfs://h/a?vers=3").unwrap();
            let options = crate::mount::UrlOptions { security, ..url.options().clone() };
            let url = url.with_options(options);
            prop_assert_eq!(NfsUrl::parse(&url.to_string()).unwrap(), url);
        }
    }
}
