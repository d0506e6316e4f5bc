//! `dafs sync`: makes a directory a copy of another one, and copies only the differences.

use crate::copy::CopyOptions;
use crate::copy::sync::{self, SyncOptions};
use crate::copy::view::Operand;
use crate::failure::Failure;
use crate::session::Sessions;
use std::ffi::OsString;

/// Make a directory a copy of another one, and copy only the differences
///
/// At least one of the directories is a URL. Both may be, of one server or of two. The contents of SOURCE
/// go into TARGET, which is made if it is missing. A file that is there with the same size and time of change
/// is left alone, and so is each other object that is the same. A file appears under its name when it
/// is complete. Objects that SOURCE does not have stay, unless --delete is given. In a GLOB, ? and
/// [a-z] stand for a letter, * for letters but the slash, ** for any letters. A GLOB with a slash is
/// about the path below SOURCE, one without is about the name.
#[derive(Debug, clap::Args)]
pub(crate) struct Sync {
    /// The directory to copy: a path or a URL
    source: OsString,
    /// The directory that becomes the copy: a path or a URL
    target: OsString,
    #[command(flatten)]
    sync: SyncOptions,
    #[command(flatten)]
    options: CopyOptions,
}

impl Sync {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let (source, target) = (Operand::parse(&self.source)?, Operand::parse(&self.target)?);
        sync::run(sessions, &source, &target, (&self.options, &self.sync))
    }
}
