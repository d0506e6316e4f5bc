//! The keys of a configuration file that differ from those in force, and the fate of each at a reload.
//!
//! Invariants
//! * A changed key is either applied or refused. A refused one is refused again at the next reload, until
//!   it has its old value or the server was started again.
//! * Reports have names of keys, and no values: some values are secret.

use crate::admin::RefusedKey;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// The differences between the keys in force and a file.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changes {
    /// The keys that a reload applies.
    pub(crate) applied: Vec<String>,
    /// The keys that need a restart.
    pub(crate) refused: Vec<RefusedKey>,
    /// The keys in force after the reload.
    pub(crate) in_force: Table,
}

/// Compares the keys in force with a file.
pub(crate) fn changes(in_force: &Table, file: &Table) -> Changes {
    let mut changes = Changes { in_force: in_force.clone(), ..Changes::default() };
    for key in keys_of(in_force, file) {
        let (old, new) = (in_force.get(key), file.get(key));
        match key {
            _ if old == new => {}
            "export" => changes.exports(old, new),
            "importance" => {
                changes.applied.push(key.to_owned());
                changes.put(key, new);
            }
            "identity" => changes.identities(old, new),
            _ => changes.refuse(key, old, new),
        }
    }
    changes
}

/// Returns the name of a key of an export in reports.
pub(crate) fn export_key(export: &str, key: &str) -> String {
    format!("export {export:?}: {key}")
}

fn keys_of<'a>(one: &'a Table, other: &'a Table) -> BTreeSet<&'a str> {
    one.keys().chain(other.keys()).map(String::as_str).collect()
}

/// Returns the tables of an array of tables.
fn tables(value: Option<&Value>) -> impl Iterator<Item = &Table> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

impl Changes {
    fn put(&mut self, key: &str, value: Option<&Value>) {
        match value {
            Some(value) => drop(self.in_force.insert(key.to_owned(), value.clone())),
            None => drop(self.in_force.remove(key)),
        }
    }

    /// All keys of exports are applied.
    fn exports(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let name = |export: &Table| {
            export.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        for export in tables(new) {
            let name_of_it = name(export);
            match tables(old).find(|known| name(known) == name_of_it) {
                None => self.applied.push(export_key(&name_of_it, "added")),
                Some(known) => {
                    let keys = keys_of(known, export);
                    let changed =
                        keys.into_iter().filter(|key| known.get(*key) != export.get(*key));
                    self.applied.extend(changed.map(|key| export_key(&name_of_it, key)));
                }
            }
        }
        for gone in
            tables(old).map(name).filter(|gone| !tables(new).any(|left| name(left) == *gone))
        {
            self.applied.push(export_key(&gone, "removed"));
        }
        self.put("export", new);
    }

    /// Rules for certificates are applied. Those for principals of Kerberos are not.
    fn identities(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let split = |rules: Option<&Value>| -> (Vec<Table>, Vec<Table>) {
            tables(rules).cloned().partition(|rule| rule.contains_key("certificate"))
        };
        let ((old_users, principals), (users, new_principals)) = (split(old), split(new));
        if old_users != users {
            self.applied.push("identity: certificate".to_owned());
        }
        if principals != new_principals {
            let reason = "rules for principals of Kerberos are read at the start".to_owned();
            self.refused.push(RefusedKey { key: "identity: principal".to_owned(), reason });
        }
        let rules = users.into_iter().chain(principals).map(Value::Table).collect();
        self.put("identity", Some(&Value::Array(rules)));
    }

    /// Refuses a key, or each changed key of a table.
    fn refuse(&mut self, key: &str, old: Option<&Value>, new: Option<&Value>) {
        let table = |value: Option<&Value>| match value {
            None => Some(Table::new()),
            Some(value) => value.as_table().cloned(),
        };
        let mut add = |key: String| {
            let reason = reason(&key).to_owned();
            self.refused.push(RefusedKey { key, reason });
        };
        match (table(old), table(new)) {
            (Some(old), Some(new)) => {
                let keys = keys_of(&old, &new);
                let changed = keys.into_iter().filter(|below| old.get(*below) != new.get(*below));
                changed.for_each(|below| add(format!("{key}.{below}")));
            }
            _ => add(key.to_owned()),
        }
    }
}

fn reason(key: &str) -> &'static str {
    match key {
        _ if key.ends_with("listen") => "addresses are bound at the start",
        "password_file" => "the place of the file is read at the start",
        "sandbox" => "a process is confined at its start",
        _ => "it is read at the start",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        toml::from_str(text).unwrap()
    }

    fn names(changes: &Changes) -> (Vec<&str>, Vec<&str>) {
        let refused = changes.refused.iter().map(|refused| refused.key.as_str());
        (changes.applied.iter().map(String::as_str).collect(), refused.collect())
    }

    const EXPORTS: &str = "[[export]]\nname = \"a\"\npath = \"/a\"\n";

    #[test]
    fn each_changed_key_is_applied_or_refused() {
        let old = table(&format!("threads = 2\n[nfs]\nlisten = [\"x\"]\n{EXPORTS}"));
        assert_eq!(names(&changes(&old, &old)), (vec![], vec![]));
        let new = table(
            "threads = 3\nwake = \"poll\"\n[nfs]\nlisten = [\"y\"]\ndomain = \"d\"\n[limits]\n\
             connections = 1\n[[importance]]\nweight = 2\n[[export]]\nname = \"a\"\n\
             path = \"/a\"\nread_only = true\n[[export]]\nname = \"b\"\npath = \"/b\"\n",
        );
        let found = changes(&old, &new);
        let applied = vec!["export \"a\": read_only", "export \"b\": added", "importance"];
        let refused = vec!["limits.connections", "nfs.domain", "nfs.listen", "threads", "wake"];
        assert_eq!(names(&found), (applied, refused.clone()));
        // The second reload of the same file applies nothing, and refuses the same.
        let again = changes(&found.in_force, &new);
        assert_eq!(names(&again), (vec![], refused));
        let back = changes(&found.in_force, &old);
        let applied = vec!["export \"a\": read_only", "export \"b\": removed", "importance"];
        assert_eq!(names(&back), (applied, vec![]));
        assert_eq!(back.in_force, old);
    }

    #[test]
    fn rules_for_principals_are_apart_from_those_for_certificates() {
        let rules = |certificate: &str, principal: &str| {
            table(&format!(
                "[[identity]]\ncertificate = \"{certificate}\"\n[[identity]]\nmatch = \"{principal}\"\n"
            ))
        };
        let old = rules("a", "p");
        assert_eq!(
            names(&changes(&old, &rules("b", "p"))),
            (vec!["identity: certificate"], vec![])
        );
        let found = changes(&old, &rules("b", "q"));
        assert_eq!(names(&found), (vec!["identity: certificate"], vec!["identity: principal"]));
        let again = changes(&found.in_force, &rules("b", "q"));
        assert_eq!(names(&again), (vec![], vec!["identity: principal"]));
    }

    #[test]
    fn reports_have_no_values() {
        let old = table("[server_auth]\nid = \"x\"\npassword = \"first\"\n");
        let new = table("[server_auth]\nid = \"x\"\npassword = \"second\"\n");
        let found = changes(&old, &new);
        assert_eq!(names(&found).1, ["server_auth.password"]);
        assert!(!format!("{:?}", found.refused).contains("second"));
    }
}
