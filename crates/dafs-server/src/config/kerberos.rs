//! The table `[kerberos]` and the rules `[[identity]]`: keys of this server, users of principals, and
//! users of certificates.
//!
//! Invariants
//! * A rule is about principals or about certificates, never about both.

use super::keys::table;
use super::rules::UserFile;
use super::{CLEAR_SENTENCE, Config, ExportConfig, Wrong, wrong};
use dafs_gss::mechanism::ServiceName;
use dafs_service::{Pattern, Rule, Rules, UserOf};
use dafs_tls::ServerFiles;
use std::path::{Path, PathBuf};

/// The use of Kerberos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KerberosConfig {
    /// The file with the keys of `nfs/HOST` and `dafs/HOST`.
    pub keytab: PathBuf,
    /// The NFS service that clients name.
    pub nfs: ServiceName,
    /// The DAFS service that clients name.
    pub dafs: ServiceName,
    /// Tokens for DAFS are accepted from other hosts on channels without encryption.
    pub dafs_in_clear: bool,
    /// The users of principals.
    pub rules: Rules,
}

table! {
    pub(super) struct KerberosFile {
        /// The file with the keys of `nfs/HOST`, and of `dafs/HOST` for DAFS.
        keytab: PathBuf,
        /// The name of this host in these keys, as clients have it in their URLs. Default: the name of
        /// this machine.
        host: Option<String>,
        /// The realm whose users are the local users of the same names. Default: none.
        realm: Option<String>,
    }
}

table! {
    pub(super) struct IdentityFile {
        /// The principals that the rule is about: `anna@REALM`, `SERVICE/*@REALM` or `*@REALM`.
        #[serde(rename = "match")]
        principal: Option<String>,
        /// The names in certificates that the rule is about: `anna@DOMAIN` or `*@DOMAIN`.
        certificate: Option<String>,
        /// The user as whom they act: a name of this host, `local` for the user of the same name, `nobody`,
        /// or a number together with `gid`.
        user: UserFile,
        /// The group of a user that is a number.
        gid: Option<u32>,
        /// They may act for any other user over DAFS. Default: false.
        #[serde(default)]
        trusted: bool,
    }
}

impl IdentityFile {
    fn check(&self, index: usize) -> Result<Rule, Wrong> {
        let text = self.principal.as_ref().or(self.certificate.as_ref());
        let text = text.map_or("", |text| &**text);
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("identity {text:?}: {field}"),
            steps: ["identity", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let pattern: Pattern = match (&self.principal, &self.certificate) {
            (Some(text), None) => text.parse().map_err(|remedy| wrong("match", remedy))?,
            (None, Some(text)) => match text.parse() {
                Ok(pattern @ (Pattern::Exact(_) | Pattern::Users(_))) => pattern,
                _ => {
                    let remedy = format!("{text:?} is no user; write anna@DOMAIN or *@DOMAIN");
                    return Err(wrong("certificate", remedy));
                }
            },
            _ => {
                let remedy = "write match = \"anna@REALM\" or certificate = \"anna@DOMAIN\"";
                return Err(wrong("match", remedy.to_owned()));
            }
        };
        let user = match (&self.user, self.gid) {
            (UserFile::Number(uid), Some(gid)) => UserOf::Number(*uid, gid),
            (UserFile::Number(uid), None) => {
                return Err(wrong("user", format!("name the group of user {uid} too: gid = N")));
            }
            (UserFile::Name(_), Some(_)) => {
                let remedy = "leave it out: the groups of a name are those of this host";
                return Err(wrong("gid", remedy.to_owned()));
            }
            (UserFile::Name(name), None) => match name.as_str() {
                "local" if matches!(pattern, Pattern::Instances(..)) => {
                    let remedy = "name one user: the first part of such a principal is a service";
                    return Err(wrong("user", remedy.to_owned()));
                }
                "local" => UserOf::Local,
                "nobody" => UserOf::Nobody,
                name if name.is_empty() || name.contains(['\0', ':', '/', '@']) => {
                    let remedy = "use a user's name or number, \"local\" or \"nobody\"";
                    return Err(wrong("user", remedy.to_owned()));
                }
                name => UserOf::Name(name.into()),
            },
        };
        if self.trusted && matches!(pattern, Pattern::Users(_)) {
            let remedy =
                "leave it out, or name those who may act for others: all users of a realm may not";
            return Err(wrong("trusted", remedy.to_owned()));
        }
        Ok(Rule { pattern, user, trusted: self.trusted })
    }
}

/// Checks the rules for certificates, which need authorities that vouch for them.
pub(super) fn certificate_users(
    identities: &[IdentityFile],
    tls: Option<&ServerFiles>,
) -> Result<Vec<Rule>, Wrong> {
    let rules = identities.iter().enumerate().filter(|(_, rule)| rule.certificate.is_some());
    let rules: Vec<Rule> =
        rules.map(|(index, rule)| rule.check(index)).collect::<Result<_, _>>()?;
    if !rules.is_empty() && tls.is_none_or(|files| files.authorities.is_none()) {
        let remedy =
            "write [tls] with certificate, key and authorities = \"FILE\": they vouch for users";
        return Err(wrong("identity.certificate", remedy));
    }
    Ok(rules)
}

/// Checks the sentence by which an administrator accepts what a channel without encryption means.
pub(super) fn check_clear(sentence: Option<&str>, is_on: bool) -> Result<bool, Wrong> {
    let wrong = |remedy: String| Err(wrong("danger_allow_dafs_kerberos_in_clear", remedy));
    match sentence {
        None => Ok(false),
        Some(CLEAR_SENTENCE) if is_on => Ok(true),
        Some(CLEAR_SENTENCE) => {
            wrong("leave it out, or write [kerberos] with keytab = \"FILE\"".to_owned())
        }
        Some(_) => {
            wrong(format!("remove it, or if you mean it write exactly \"{CLEAR_SENTENCE}\""))
        }
    }
}

/// Reads the domain of owners' names.
pub(super) fn owner_domain(text: &str) -> Result<Box<str>, Wrong> {
    if is_name(text) {
        return Ok(text.into());
    }
    Err(wrong("nfs.domain", format!("{text:?} is no domain; write example.org")))
}

/// Checks that owners have names only where callers can prove theirs.
pub(super) fn check_domain(config: &Config) -> Result<(), Wrong> {
    if config.nfs.domain.is_some() && config.kerberos.is_none() {
        let remedy = "leave it out, or write [kerberos]: without it owners are numbers";
        return Err(wrong("nfs.domain", remedy));
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

/// Checks both, with the exports that need them.
pub(super) fn check<'a>(
    (kerberos, dafs_in_clear): (Option<KerberosFile>, bool),
    identities: &[IdentityFile],
    exports: impl Iterator<Item = &'a ExportConfig> + Clone,
    base: &Path,
) -> Result<Option<KerberosConfig>, Wrong> {
    let proven = |export: &ExportConfig| {
        export.options.admits.flavours.iter().find(|flavour| flavour.is_proven()).copied()
    };
    let wrong_sec = |index: usize, remedy: String| Wrong {
        key: "sec".to_owned(),
        steps: ["export", &index.to_string(), "sec"].map(str::to_owned).to_vec(),
        remedy,
    };
    let Some(kerberos) = kerberos else {
        if let Some(index) = identities.iter().position(|rule| rule.certificate.is_none()) {
            if identities[index].principal.is_none() {
                identities[index].check(index)?;
            }
            let remedy = "leave it out, or write [kerberos] with keytab = \"FILE\"";
            return Err(wrong("identity", remedy));
        }
        for (index, export) in exports.enumerate() {
            if let Some(flavour) = proven(export) {
                let remedy = format!(
                    "{} needs the keys of this server: write [kerberos] with keytab = \"FILE\"",
                    flavour.name()
                );
                return Err(wrong_sec(index, remedy));
            }
        }
        return Ok(None);
    };
    if let Some(realm) = kerberos.realm.as_deref().filter(|realm| !is_name(realm)) {
        return Err(wrong("kerberos.realm", format!("{realm:?} is no realm; write EXAMPLE.ORG")));
    }
    let services = services(kerberos.host).map_err(|remedy| wrong("kerberos.host", remedy))?;
    let (nfs, dafs) = services;
    let rules = identities.iter().enumerate().filter(|(_, rule)| rule.certificate.is_none());
    let rules = rules.map(|(index, rule)| rule.check(index));
    let rules = Rules {
        rules: rules.collect::<Result<_, _>>()?,
        default_realm: kerberos.realm.map(String::into_boxed_str),
    };
    let keytab = base.join(kerberos.keytab);
    Ok(Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear, rules }))
}

/// Returns the services for NFS and for DAFS of a host, or of this one.
fn services(host: Option<String>) -> Result<(ServiceName, ServiceName), String> {
    let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.unwrap_or_else(own);
    let service = |name| {
        ServiceName::new(name, &host)
            .map_err(|_| format!("{host:?} is no host; write its full name"))
    };
    Ok((service("nfs")?, service("dafs")?))
}

impl KerberosConfig {
    /// The keys of a data server: those of `nfs/HOST`, of this host by default. It needs no rules, because
    /// the metadata server has decided about users. Its sessions of DAFS prove themselves to the metadata
    /// server.
    ///
    /// # Errors
    /// The remedy, if the name is none of a host.
    pub fn for_data_server(keytab: PathBuf, host: Option<String>) -> Result<Self, String> {
        let ((nfs, dafs), rules) = (services(host)?, Rules::default());
        Ok(Self { keytab, nfs, dafs, dafs_in_clear: false, rules })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{EXPORT, load};
    use super::*;

    const KERBEROS: &str = "[kerberos]\nkeytab = \"server.keytab\"\nrealm = \"A.ORG\"\n";

    #[test]
    fn the_rules_keep_their_order() {
        let config = load(&format!(
            "{EXPORT}sec = [\"krb5p\", \"krb5i\"]\n{KERBEROS}\
             [[identity]]\nmatch = \"backup/*@A.ORG\"\nuser = 0\ngid = 0\n\
             trusted = true\n\
             [[identity]]\nmatch = \"root@A.ORG\"\nuser = \"nobody\"\n\
             [[identity]]\nmatch = \"*@B.ORG\"\nuser = \"local\"\n"
        ))
        .unwrap();
        let kerberos = config.kerberos.unwrap();
        assert!(kerberos.keytab.ends_with("server.keytab") && kerberos.keytab.is_absolute());
        let users: Vec<_> = kerberos.rules.rules.iter().map(|rule| rule.user.clone()).collect();
        assert_eq!(users, [UserOf::Number(0, 0), UserOf::Nobody, UserOf::Local]);
        let trusted: Vec<_> = kerberos.rules.rules.iter().map(|rule| rule.trusted).collect();
        assert_eq!(trusted, [true, false, false]);
        assert!(kerberos.dafs.as_str().starts_with("dafs@") && !kerberos.dafs_in_clear);
    }

    const TLS: &str =
        "[tls]\ncertificate = \"nas.pem\"\nkey = \"nas-key.pem\"\nauthorities = \"ca.pem\"\n";

    #[test]
    fn rules_are_about_principals_or_certificates() {
        let principal = "[[identity]]\nmatch = \"*@A.ORG\"\nuser = \"local\"\n";
        let certificates = "[[identity]]\ncertificate = \"root@a.org\"\nuser = \"nobody\"\n\
                            [[identity]]\ncertificate = \"*@a.org\"\nuser = \"local\"\n";
        let both = load(&format!("{EXPORT}{KERBEROS}{TLS}{certificates}{principal}")).unwrap();
        let users = |rules: &[Rule]| rules.iter().map(|rule| rule.user.clone()).collect::<Vec<_>>();
        assert_eq!(users(&both.kerberos.unwrap().rules.rules), [UserOf::Local]);
        assert_eq!(users(&both.certificate_users), [UserOf::Nobody, UserOf::Local]);
        let alone = load(&format!("{EXPORT}{TLS}{certificates}")).unwrap();
        assert_eq!(alone.certificate_users, both.certificate_users);
        assert!(alone.kerberos.is_none());
        assert_eq!(
            load(&format!("{EXPORT}{KERBEROS}{TLS}{principal}")).unwrap().certificate_users,
            []
        );
        let check = |text: &str, expected: &str| {
            let error = load(&format!("{EXPORT}{text}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check(certificates, "authorities = \"FILE\"");
        check(
            &format!("{}{certificates}", TLS.replace("authorities", "revocations")),
            "authorities",
        );
        let rule = |rule: &str| format!("{TLS}[[identity]]\n{rule}");
        check(&rule("certificate = \"host/*@a.org\"\nuser = \"local\""), "*@DOMAIN");
        check(&rule("certificate = \"anna\"\nuser = \"local\""), "anna@DOMAIN");
        check(&rule("user = \"local\""), "or certificate =");
        let twice = "match = \"a@B\"\ncertificate = \"a@b\"\nuser = 1\ngid = 1";
        check(&rule(twice), "or certificate =");
        check(&rule("certificate = \"a@b\"\nuser = 7"), "gid = N");
        check(
            &rule("certificate = \"*@b\"\nuser = \"local\"\ntrusted = true"),
            "may act for others",
        );
    }

    #[test]
    fn a_channel_without_encryption_must_be_meant() {
        let load = |sentence: &str, kerberos: &str| {
            load(&format!(
                "listen = [\"0.0.0.0:0\"]\n\
                 danger_allow_dafs_kerberos_in_clear = \"{sentence}\"\n{EXPORT}{kerberos}"
            ))
        };
        let config = load(CLEAR_SENTENCE, KERBEROS).unwrap();
        assert!(config.kerberos.as_ref().unwrap().dafs_in_clear);
        config.check_exposure().unwrap();
        let without =
            super::super::tests::load(&format!("listen = [\"0.0.0.0:0\"]\n{EXPORT}{KERBEROS}"));
        assert!(without.unwrap().check_exposure().is_err(), "nobody could prove anything");
        let error = load("yes", KERBEROS).unwrap_err().to_string();
        assert!(error.contains(CLEAR_SENTENCE), "{error}");
        let error = load(CLEAR_SENTENCE, "").unwrap_err().to_string();
        assert!(error.contains("[kerberos]"), "{error}");
    }

    #[test]
    fn errors_name_the_text_to_write() {
        let check = |text: &str, expected: &str| {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check(&format!("{EXPORT}sec = [\"krb5\"]"), "[kerberos] with keytab");
        check(
            &format!("{EXPORT}[[identity]]\nmatch = \"a@B\"\nuser = 1"),
            "[kerberos] with keytab",
        );
        check(&format!("{EXPORT}{}", KERBEROS.replace("A.ORG", "A B")), "EXAMPLE.ORG");
        let rule = |rule: &str| format!("{EXPORT}{KERBEROS}[[identity]]\n{rule}");
        check(&rule("match = \"anna\"\nuser = \"local\""), "anna@REALM");
        check(&rule("match = \"a@B\"\nuser = 7"), "gid = N");
        check(&rule("match = \"a@B\"\nuser = \"x\"\ngid = 7"), "leave it out");
        check(&rule("match = \"host/*@B\"\nuser = \"local\""), "is a service");
        check(&rule("match = \"a@B\"\nuser = \"a:b\""), "a user's name or number");
        check(&rule("match = \"*@B\"\nuser = \"local\"\ntrusted = true"), "may act for others");
        check(&format!("{EXPORT}{KERBEROS}[nfs]\ndomain = \"a b\""), "write example.org");
        check(&format!("{EXPORT}[nfs]\ndomain = \"a.org\""), "write [kerberos]");
    }

    #[test]
    fn owners_have_a_domain_of_their_own() {
        let config = load(&format!("{EXPORT}{KERBEROS}[nfs]\ndomain = \"a.org\"")).unwrap();
        assert_eq!(config.nfs.domain.as_deref(), Some("a.org"));
        assert_eq!(load(&format!("{EXPORT}{KERBEROS}")).unwrap().nfs.domain, None);
    }
}
