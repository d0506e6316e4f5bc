//! The rules `[[importance]]`: weights of sessions by user, network and client name.
//!
//! Invariants
//! * A rule has a condition. A weight for all sessions would change nothing.
//! * Names of users are looked up when the configuration is read, so that no session waits for that.

use super::keys::table;
use super::rules::UserFile;
use super::{Wrong, wrong};
use crate::limits::IMPORTANCE_RULES_MAX;
use dafs_service::{Directory, ImportanceRule, LocalDirectory, Weight};

table! {
    pub(super) struct ImportanceFile {
        /// The user as whom the session acts: a name or a number of this host.
        user: Option<UserFile>,
        /// The address of the client, as a range such as `192.0.2.0/24`.
        network: Option<String>,
        /// The name of the client, as `dafs clients` shows it; `*` stands for any text.
        client: Option<String>,
        /// The weight of these sessions: 1 to 10000. Sessions without a rule have 100.
        weight: u32,
    }
}

impl UserFile {
    /// Returns the number of the user.
    fn uid(&self) -> Result<u32, String> {
        let name = match self {
            Self::Number(uid) => return Ok(*uid),
            Self::Name(name) => name,
        };
        match LocalDirectory.uid(name) {
            Ok(Some(uid)) => Ok(uid),
            Ok(None) => Err(format!(
                "this host has no user {name:?} (getent passwd); write a user's name or number"
            )),
            Err(error) => Err(format!("cannot look up user {name:?}: {error}; write the number")),
        }
    }
}

impl ImportanceFile {
    fn check(&self, index: usize) -> Result<ImportanceRule, Wrong> {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("importance: {field}"),
            steps: ["importance", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let weight = Weight::new(self.weight).ok_or_else(|| {
            let default = Weight::default();
            let remedy =
                format!("use 1 to {}; sessions without a rule have {default}", Weight::MAX);
            wrong("weight", remedy)
        })?;
        if self.user.is_none() && self.network.is_none() && self.client.is_none() {
            let remedy = "say which sessions: user = \"anna\", network = \"192.0.2.0/24\" or client = \"NAME*\"";
            return Err(wrong("weight", remedy.to_owned()));
        }
        let user = self.user.as_ref().map(UserFile::uid).transpose();
        let network = self.network.as_ref().map(|text| text.parse()).transpose();
        let client = self.client.as_ref().map(|text| text.parse()).transpose();
        Ok(ImportanceRule {
            user: user.map_err(|remedy| wrong("user", remedy))?,
            network: network.map_err(|remedy| wrong("network", remedy))?,
            client: client.map_err(|remedy| wrong("client", remedy))?,
            weight,
        })
    }
}

/// Checks the rules.
pub(super) fn check(rules: &[ImportanceFile]) -> Result<Vec<ImportanceRule>, Wrong> {
    if rules.len() > IMPORTANCE_RULES_MAX {
        let remedy = format!("use {IMPORTANCE_RULES_MAX} rules at most");
        return Err(wrong("importance", remedy));
    }
    rules.iter().enumerate().map(|(index, rule)| rule.check(index)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{EXPORT, load};
    use super::*;

    #[test]
    fn rules_keep_their_order() {
        let text = format!(
            "{EXPORT}[[importance]]\nclient = \"db*\"\nnetwork = \"192.0.2.0/24\"\nweight = 1000\n\
             [[importance]]\nuser = \"root\"\nweight = 300\n[[importance]]\nuser = 7\nweight = 1\n"
        );
        let rules = load(&text).unwrap().importance;
        let seen: Vec<_> = rules.iter().map(|rule| (rule.user, rule.weight.get())).collect();
        assert_eq!(seen, [(None, 1000), (Some(0), 300), (Some(7), 1)]);
        assert!(rules[0].network.is_some() && rules[0].client.is_some());
        assert!(load(EXPORT).unwrap().importance.is_empty());
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_remedy() {
        let line = 1 + EXPORT.matches('\n').count();
        let cases = [
            (
                "client = \"x\"\nweight = 0",
                "weight: use 1 to 10000; sessions without a rule have 100",
                2,
            ),
            ("client = \"x\"\nweight = 10001", "weight: use 1 to 10000", 2),
            ("weight = 5", "say which sessions", 1),
            ("network = \"x\"\nweight = 5", "network: \"x\" is no address range", 1),
            ("client = \"\"\nweight = 5", "client: write a client's name", 1),
            ("user = \"nobody by this name\"\nweight = 5", "this host has no user", 1),
        ];
        for (rule, remedy, at) in cases {
            let error = load(&format!("{EXPORT}[[importance]]\n{rule}\n")).unwrap_err().to_string();
            assert!(error.contains(remedy), "{error}");
            assert!(error.contains(&format!("line {}:", line + at)), "{error}");
        }
        let many = "[[importance]]\nuser = 1\nweight = 5\n".repeat(IMPORTANCE_RULES_MAX + 1);
        let error = load(&format!("{EXPORT}{many}")).unwrap_err().to_string();
        assert!(error.contains("rules at most"), "{error}");
        assert!(load(&format!("{EXPORT}[[importance]]\nuser = 1")).is_err(), "no weight");
    }
}
