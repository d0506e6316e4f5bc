//! How to open a file, as Python writes it.

use crate::hint::{self, Hint};
use dafs_client::{Create, OpenOptions, SetAttributes, ShareDeny};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The arguments of an open.
pub(crate) struct Opening<'a> {
    /// "r", "w" or "rw".
    pub(crate) access: &'a str,
    /// "never", "if-missing" or "new".
    pub(crate) create: &'a str,
    pub(crate) truncate: bool,
    /// Permission bits of a new file.
    pub(crate) permissions: Option<u32>,
    /// Excludes opens under another key.
    pub(crate) share_key: Option<u64>,
    /// Excludes everybody without the key, too.
    pub(crate) strict_key: bool,
    /// Accesses that others do not get: "read", "write" or "both".
    pub(crate) deny: Option<&'a str>,
    /// Others can neither remove nor replace the file.
    pub(crate) deny_delete: bool,
    pub(crate) pattern: Option<&'a str>,
    pub(crate) hint: Option<Hint>,
}

impl Opening<'_> {
    /// The options for the client library.
    pub(crate) fn options(self) -> PyResult<OpenOptions> {
        let options = match self.access {
            "r" => OpenOptions::read(),
            "w" => OpenOptions::write(),
            "rw" => OpenOptions::read_write(),
            _ => return wrong("access is \"r\", \"w\" or \"rw\""),
        };
        let create = match self.create {
            "never" => Create::Never,
            "if-missing" => Create::IfMissing,
            "new" => Create::Exclusive,
            _ => return wrong("create is \"never\", \"if-missing\" or \"new\""),
        };
        let deny = match self.deny {
            None => ShareDeny::None,
            Some("read") => ShareDeny::Read,
            Some("write") => ShareDeny::Write,
            Some("both") => ShareDeny::Both,
            Some(_) => return wrong("deny is \"read\", \"write\" or \"both\""),
        };
        let options = match (self.share_key, self.strict_key) {
            (Some(key), true) => options.strict_share_key(key),
            (Some(key), false) => options.share_key(key),
            (None, true) => return wrong("strict_key needs a share_key"),
            (None, false) => options,
        };
        let attributes = SetAttributes { mode: self.permissions, ..SetAttributes::default() };
        let pattern = hint::pattern(self.pattern)?;
        let options = options.create(create).truncate(self.truncate).attributes(attributes);
        let options = options.deny(deny).deny_delete(self.deny_delete);
        Ok(options.pattern(pattern).hint(hint::word(self.hint)?))
    }
}

fn wrong<T>(text: &'static str) -> PyResult<T> {
    Err(PyValueError::new_err(text))
}
