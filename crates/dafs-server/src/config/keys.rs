//! The keys of configuration files with their documentation, from the structures that serde fills.
//!
//! Invariants
//! * A key without documentation does not compile: `table!` demands the text of each.

use super::engine::EngineFile;
use super::file::ConfigFile;
use super::rules::{OptimisticFile, UserFile};
use super::units::{Bytes, Milliseconds, Seconds};
use dafs_dat::Wake;
use std::path::PathBuf;

/// A key of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, without the names of its tables.
    pub name: &'static str,
    /// Another name that is understood, too.
    pub other_name: Option<&'static str>,
    /// Its purpose, unit, range and default: paragraphs, with an empty line between two of them. Words
    /// between backquotes are names, values and commands.
    pub about: String,
    /// The form of its value.
    pub form: Form,
}

/// The form of a key's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// One value: "text", "number", "path".
    Value(&'static str),
    /// A list of such values in brackets.
    List(&'static str),
    /// A table, `[NAME]`, with these keys.
    Table(Vec<Key>),
    /// Any number of tables, `[[NAME]]`, with these keys each.
    Tables(Vec<Key>),
}

impl Key {
    /// Makes a key from the parts of its definition: the field, the text of its attributes for serde,
    /// and the lines of its documentation.
    pub(super) fn new(
        field: &'static str,
        attributes: &'static str,
        documentation: &[&str],
        form: Form,
    ) -> Self {
        let quoted = |word: &str| -> Option<&'static str> {
            let (_, behind) = attributes.split_once(word)?;
            behind.split('"').nth(1)
        };
        Self {
            name: quoted("rename").unwrap_or(field),
            other_name: quoted("alias"),
            about: paragraphs(documentation),
            form,
        }
    }
}

/// Joins the lines of documentation. An empty line begins a new paragraph.
fn paragraphs(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines.iter().map(|line| line.trim()) {
        let gap = match (text.is_empty() || text.ends_with('\n'), line.is_empty()) {
            (_, true) => "\n\n",
            (true, false) => "",
            (false, false) => " ",
        };
        text.push_str(gap);
        text.push_str(line);
    }
    text
}

/// A type that a key may have in the file.
pub(super) trait Documented {
    /// Returns what may be written.
    fn form() -> Form;
}

/// Implements [`Documented`] for types that are written as one value.
macro_rules! values {
    ($($words:literal: $($form:ty),+;)+) => {
        $($(
            impl Documented for $form {
                fn form() -> Form {
                    Form::Value($words)
                }
            }
        )+)+
    };
}

values! {
    "true or false": bool;
    "true, false or \"remote\"": OptimisticFile;
    "number": u16, u32, u64, usize;
    "number, or text with a unit": Bytes, Seconds, Milliseconds;
    "path": PathBuf;
    "text": String;
    "text or number": UserFile;
    "text": Wake;
}

impl<T: Documented> Documented for Option<T> {
    fn form() -> Form {
        T::form()
    }
}

impl<T: Documented> Documented for Vec<T> {
    fn form() -> Form {
        match T::form() {
            Form::Value(words) => Form::List(words),
            Form::Table(keys) => Form::Tables(keys),
            form => form,
        }
    }
}

/// Returns the keys of a server's configuration file, in the order of their definitions.
pub fn config_keys() -> Vec<Key> {
    of::<ConfigFile>()
}

/// Returns the keys of the file that describes the storage engine of a data server
/// ([`EngineConfig`](super::EngineConfig)).
pub fn engine_keys() -> Vec<Key> {
    of::<EngineFile>()
}

fn of<T: Documented>() -> Vec<Key> {
    match T::form() {
        Form::Table(keys) | Form::Tables(keys) => keys,
        Form::Value(_) | Form::List(_) => Vec::new(),
    }
}

/// Defines a table of a configuration file: the structure that serde fills, which knows no other keys, and
/// the documentation of its keys.
macro_rules! table {
    (
        $(#[doc = $about:literal])*
        $(#[derive($derive:ident)])?
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $documentation:literal])+
                $(#[serde($($attributes:tt)+)])?
                $field:ident: $form:ty,
            )+
        }
    ) => {
        $(#[doc = $about])*
        #[derive(serde::Deserialize)]
        $(#[derive($derive)])?
        #[serde(deny_unknown_fields)]
        $visibility struct $name {
            $(
                $(#[doc = $documentation])+
                $(#[serde($($attributes)+)])?
                $field: $form,
            )+
        }

        impl $crate::config::keys::Documented for $name {
            fn form() -> $crate::config::keys::Form {
                $crate::config::keys::Form::Table(vec![
                    $($crate::config::keys::Key::new(
                        stringify!($field),
                        concat!("", $(stringify!($($attributes)+))?),
                        &[$($documentation),+],
                        <$form as $crate::config::keys::Documented>::form(),
                    ),)+
                ])
            }
        }
    };
}
pub(super) use table;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names that serde knows in a table, from its message about one that it does not know.
    fn known_to_serde<T: serde::de::DeserializeOwned>(path: &[(&str, bool)]) -> Vec<String> {
        let mut text = String::new();
        let mut names = Vec::new();
        for (name, is_array) in path {
            names.push(*name);
            let name = names.join(".");
            text.push_str(&if *is_array { format!("[[{name}]]\n") } else { format!("[{name}]\n") });
        }
        text.push_str("no-such-key = 1\n");
        let Err(error) = toml::from_str::<T>(&text) else { panic!("{path:?}: anything goes") };
        let said = error.message().to_owned();
        let (_, list) = said.split_once("expected ").unwrap_or_else(|| panic!("{path:?}: {said}"));
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    fn compare<T: serde::de::DeserializeOwned>(
        keys: &[Key],
        path: &[(&'static str, bool)],
    ) -> usize {
        let documented = keys
            .iter()
            .flat_map(|key| std::iter::once(key.name).chain(key.other_name).map(str::to_owned));
        let mut documented: Vec<String> = documented.collect();
        documented.sort();
        let mut known = known_to_serde::<T>(path);
        known.sort();
        assert_eq!(documented, known, "{path:?}");
        let mut count = keys.len();
        for key in keys {
            assert!(
                key.about.ends_with('.') && key.about.is_ascii(),
                "{}: {}",
                key.name,
                key.about
            );
            let (below, is_array) = match &key.form {
                Form::Table(below) => (below, false),
                Form::Tables(below) => (below, true),
                Form::Value(_) | Form::List(_) => continue,
            };
            let path: Vec<_> = path.iter().copied().chain([(key.name, is_array)]).collect();
            count += compare::<T>(below, &path);
        }
        count
    }

    #[test]
    fn each_key_that_the_parser_knows_is_documented() {
        assert!(compare::<ConfigFile>(&config_keys(), &[]) > 70);
        assert!(compare::<EngineFile>(&engine_keys(), &[]) > 8);
    }

    #[test]
    fn documentation_has_paragraphs() {
        assert_eq!(paragraphs(&[" One", " two.", "", " Three."]), "One two.\n\nThree.");
        let key = Key::new("principal", "rename = \"match\"", &[" A."], Form::Value("text"));
        assert_eq!((key.name, key.other_name), ("match", None));
        let key = Key::new("sec", "alias = \"security\"", &[" A."], Form::List("text"));
        assert_eq!((key.name, key.other_name), ("sec", Some("security")));
    }
}
