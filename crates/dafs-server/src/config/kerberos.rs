//! The table `[kerberos]` and the rules `[[identity]]`: keys of this server, and users of
//! principals.

use super::{ExportConfig, ExportSource, Wrong, wrong};
use dafs_gss::mechanism::ServiceName;
use dafs_service::{Pattern, Rule, Rules, UserOf};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The use of Kerberos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KerberosConfig {
    /// The file with the keys of `nfs/HOST` and `dafs/HOST`.
    pub keytab: PathBuf,
    /// The NFS service that clients name.
    pub nfs: ServiceName,
    /// The users of principals.
    pub rules: Rules,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KerberosFile {
    keytab: PathBuf,
    host: Option<String>,
    realm: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdentityFile {
    #[serde(rename = "match")]
    pattern: String,
    user: UserFile,
    gid: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum UserFile {
    Number(u32),
    Name(String),
}

impl IdentityFile {
    fn check(&self, index: usize) -> Result<Rule, Wrong> {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("identity {:?}: {field}", self.pattern),
            steps: ["identity", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let pattern: Pattern = self.pattern.parse().map_err(|remedy| wrong("match", remedy))?;
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
        Ok(Rule { pattern, user })
    }
}

/// Checks both, with the exports that need them.
pub(super) fn check<'a>(
    kerberos: Option<KerberosFile>,
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
    for (index, export) in exports.clone().enumerate() {
        if !matches!(export.source, ExportSource::Directory(_) | ExportSource::Memory { .. })
            && let Some(flavour) = proven(export)
        {
            let remedy = format!("data servers have no {} yet; use sys or none", flavour.name());
            return Err(wrong_sec(index, remedy));
        }
    }
    let Some(kerberos) = kerberos else {
        if !identities.is_empty() {
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
    let is_name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    if let Some(realm) = kerberos.realm.as_deref().filter(|realm| !is_name(realm)) {
        return Err(wrong("kerberos.realm", format!("{realm:?} is no realm; write EXAMPLE.ORG")));
    }
    let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = kerberos.host.unwrap_or_else(own);
    let nfs = ServiceName::new("nfs", &host)
        .map_err(|_| wrong("kerberos.host", format!("{host:?} is no host; write its full name")))?;
    let rules = identities.iter().enumerate().map(|(index, rule)| rule.check(index));
    let rules = Rules {
        rules: rules.collect::<Result<_, _>>()?,
        default_realm: kerberos.realm.map(String::into_boxed_str),
    };
    Ok(Some(KerberosConfig { keytab: base.join(kerberos.keytab), nfs, rules }))
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
             [[identity]]\nmatch = \"root@A.ORG\"\nuser = \"nobody\"\n\
             [[identity]]\nmatch = \"*@B.ORG\"\nuser = \"local\"\n"
        ))
        .unwrap();
        let kerberos = config.kerberos.unwrap();
        assert!(kerberos.keytab.ends_with("server.keytab") && kerberos.keytab.is_absolute());
        let users: Vec<_> = kerberos.rules.rules.iter().map(|rule| rule.user.clone()).collect();
        assert_eq!(users, [UserOf::Number(0, 0), UserOf::Nobody, UserOf::Local]);
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
    }
}
