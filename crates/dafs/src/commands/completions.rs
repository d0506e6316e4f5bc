//! `dafs completions`: scripts by which shells complete commands and options.

use crate::completions::{Shell, script};
use crate::failure::Failure;
use crate::output::print;

/// Print completions for a shell
///
/// Packages and `make install` put them where shells look for them. In a home directory:
/// `dafs completions bash >~/.local/share/bash-completion/completions/dafs`, or
/// `dafs completions fish >~/.config/fish/completions/dafs.fish`, or for zsh a file `_dafs` in a
/// folder of `$fpath`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        print(&script(self.shell))
    }
}
