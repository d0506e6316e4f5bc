//! `dafs check`: compares two trees.

use crate::copy::check::{self, Rules};
use crate::copy::sync::filter;
use crate::copy::view::{Operand, Tree};
use crate::failure::Failure;
use crate::session::Sessions;
use std::ffi::OsString;

/// Compare two directory trees, with the contents of all files
///
/// Prints a line for each difference: an object that only one of them has, another type, size, content,
/// text of a symlink, or number of a device. Each tree is a path of this host or a URL. Exit status: 0
/// the trees are the same, 1 they differ or a part could not be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// A directory: a path or a URL
    first: OsString,
    /// The other directory: a path or a URL
    second: OsString,
    /// Compare sizes and times of files, and read no contents
    #[arg(long)]
    quick: bool,
    /// Compare only files that match this pattern; may be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<OsString>,
    /// Leave out objects that match this pattern, directories with their contents; may be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Print one JSON object per difference and line
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let filter = filter(&self.include, &self.exclude)?;
        let rules = Rules { filter, quick: self.quick, json: self.json };
        let (first, second) = (Operand::parse(&self.first)?, Operand::parse(&self.second)?);
        let (ours, our_top) = Tree::open_directory(sessions, &first)?;
        let (theirs, their_top) = Tree::open_directory(sessions, &second)?;
        check::run([(&ours, our_top), (&theirs, their_top)], &rules)
    }
}
