//! `dafs get`: copies from a server to this host.

use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use crate::session::Sessions;
use std::path::PathBuf;

/// Copy files and directory trees from a server to this host
///
/// As cp -a does: directories with their contents, symlinks as symlinks, permissions and times,
/// hard links and holes. If LOCAL is a directory the copies go into it. A file appears under its
/// name when it is complete. The root of a server, and a URL that ends in "/.", stand for their
/// contents.
#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    /// The files and directories to copy
    #[arg(required = true, num_args = 1.., value_name = "URL")]
    pub(crate) sources: Vec<RemoteUrl>,
    /// The target: a directory, or the name of the copy
    #[arg(required = true, value_name = "LOCAL")]
    pub(crate) target: PathBuf,
    #[command(flatten)]
    options: CopyOptions,
}

impl Get {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        copy::get::run(sessions, &self.sources, &self.target, &self.options)
    }
}
