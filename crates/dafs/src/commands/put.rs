//! `dafs put`: copies from this host to a server.

use crate::copy::view::Operand;
use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use crate::session::Sessions;
use std::path::PathBuf;

/// Copy files and directory trees from this host to a server
///
/// As cp -a does: directories with their contents, symlinks as symlinks, permissions and times,
/// hard links and holes. If URL is a directory the copies go into it. A file appears under its name
/// when it is complete. A path that ends in "/." stands for its contents.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The files and directories to copy
    #[arg(required = true, num_args = 1.., value_name = "LOCAL")]
    sources: Vec<PathBuf>,
    /// The target: a directory, or the name of the copy
    #[arg(required = true, value_name = "URL")]
    target: RemoteUrl,
    #[command(flatten)]
    options: CopyOptions,
}

impl Put {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let sources: Vec<Operand> = self.sources.iter().cloned().map(Operand::Local).collect();
        copy::put::run(sessions, &sources, &self.target, &self.options)
    }
}
