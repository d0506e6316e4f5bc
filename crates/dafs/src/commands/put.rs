//! `dafs put`: copies from this host to a server.

use super::operands::{sources_and_target, url};
use crate::copy::view::Operand;
use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::session::Sessions;
use std::ffi::OsString;
use std::path::PathBuf;

/// Copy files and directory trees from this host to a server
///
/// As cp -a does: directories with their contents, symlinks as symlinks, permissions and times,
/// hard links and holes. If URL is a directory the copies go into it. A file appears under its name
/// when it is complete. A path that ends in "/." stands for its contents.
#[derive(Debug, clap::Args)]
#[command(override_usage = "dafs put [OPTIONS] <LOCAL>... <URL>")]
pub(crate) struct Put {
    /// The files and directories to copy, and last the target: a directory, or the name of the copy
    #[arg(required = true, num_args = 1.., value_name = "OPERAND")]
    operands: Vec<OsString>,
    #[command(flatten)]
    options: CopyOptions,
}

impl Put {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let (sources, target) = sources_and_target(&self.operands, "URL")?;
        let local = |source: &OsString| Operand::Local(PathBuf::from(source));
        let sources: Vec<Operand> = sources.iter().map(local).collect();
        copy::put::run(sessions, &sources, &url(target)?, &self.options)
    }
}
