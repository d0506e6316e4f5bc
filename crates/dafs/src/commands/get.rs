//! `dafs get`: copies from a server to this host.

use super::operands::{sources_and_target, urls};
use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::session::Sessions;
use std::ffi::OsString;
use std::path::Path;

/// Copy files and directory trees from a server to this host
///
/// As cp -a does: directories with their contents, symlinks as symlinks, permissions and times,
/// hard links and holes. If LOCAL is a directory the copies go into it. A file appears under its
/// name when it is complete. The root of a server, and a URL that ends in "/.", stand for their
/// contents.
#[derive(Debug, clap::Args)]
#[command(override_usage = "dafs get [OPTIONS] <URL>... <LOCAL>")]
pub(crate) struct Get {
    /// The files and directories to copy, and last the target: a directory, or the name of the copy
    #[arg(required = true, num_args = 1.., value_name = "OPERAND")]
    operands: Vec<OsString>,
    #[command(flatten)]
    options: CopyOptions,
}

impl Get {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let (sources, target) = sources_and_target(&self.operands, "LOCAL")?;
        copy::get::run(sessions, &urls(sources)?, Path::new(target), &self.options)
    }
}
