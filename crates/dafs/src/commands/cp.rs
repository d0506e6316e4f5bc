//! `dafs cp`: `get` and `put` under the name that everybody types first.

use crate::copy::view::Operand;
use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use crate::session::Sessions;
use std::ffi::OsString;
use std::path::PathBuf;

/// Copy files and directory trees from a server to this host, or the other way round
///
/// The same as get where the sources are URLs, and as put where the target is one.
#[derive(Debug, clap::Args)]
pub(crate) struct Cp {
    /// The files and directories to copy: all paths of this host, or all URLs
    #[arg(required = true, num_args = 1.., value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The target: a directory, or the name of the copy
    #[arg(required = true)]
    target: OsString,
    #[command(flatten)]
    options: CopyOptions,
}

impl Cp {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let (mut paths, mut urls): (Vec<PathBuf>, Vec<RemoteUrl>) = (Vec::new(), Vec::new());
        for source in &self.sources {
            match Operand::parse(source)? {
                Operand::Local(path) => paths.push(path),
                Operand::Remote(url) => urls.push(url),
            }
        }
        match Operand::parse(&self.target)? {
            Operand::Local(target) if paths.is_empty() => {
                copy::get::run(sessions, &urls, &target, &self.options)
            }
            Operand::Remote(target) if urls.is_empty() => {
                copy::put::run(sessions, &paths, &target, &self.options)
            }
            Operand::Local(_) => Err(Failure::Usage(
                "a source and the target are both on this host; use cp -a, or name one of them by \
                 its URL"
                    .to_owned(),
            )),
            Operand::Remote(target) => Err(Failure::Usage(format!(
                "a source and {target} are both on servers; copy to this host first, or from a \
                 mount of dafs mount"
            ))),
        }
    }
}
