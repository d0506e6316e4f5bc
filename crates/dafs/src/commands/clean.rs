//! `dafs clean`: removes unfinished files that killed copies have left.

use super::for_each;
use crate::copy::clean;
use crate::copy::view::{Operand, Tree};
use crate::failure::Failure;
use crate::session::Sessions;
use std::ffi::OsString;

/// Remove unfinished files that killed copies have left
///
/// Searches directory trees for files named .dafs-XXXXXX.part, and prints and removes those that no copy
/// is writing: on this host those that no process has locked, on a DAFS server those that no client has
/// open for writing. On an NFS server and on a network mount such a copy cannot be seen, so a file must
/// have been left alone for a day. Other files are never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Clean {
    /// Directories: paths or URLs
    #[arg(required = true, value_name = "TREE")]
    trees: Vec<OsString>,
    /// Print the files, and remove none
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Clean {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        for_each(&self.trees, |text| {
            let top = Operand::parse(text)?;
            let (tree, _) = Tree::open_directory(sessions, &top)?;
            clean::run(&tree, self.dry_run)
        })
    }
}
