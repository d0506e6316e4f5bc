//! `dafs warmup`: makes a server read files into its memory.

use crate::copy::view::{Operand, Tree};
use crate::copy::warmup;
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use crate::session::Sessions;

/// Read all files of directory trees, so that their server has them in memory
///
/// Later reads need no disk, as long as the server has memory for the files. Nothing is kept on this
/// host.
#[derive(Debug, clap::Args)]
pub(crate) struct Warmup {
    /// The directories
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Read at most so many bytes per second; k, m or g may follow the number
    #[arg(long, value_name = "BYTES", value_parser = crate::commands::bench::bytes)]
    bwlimit: Option<u64>,
    /// Print a summary as one JSON object
    #[arg(long)]
    json: bool,
}

impl Warmup {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let open = |url: &RemoteUrl| {
            Tree::open_directory(sessions, &Operand::Remote(url.clone())).map(|(tree, _)| tree)
        };
        let trees: Vec<Tree> = self.urls.iter().map(open).collect::<Result<_, Failure>>()?;
        warmup::run(&trees, self.bwlimit, self.json)
    }
}
