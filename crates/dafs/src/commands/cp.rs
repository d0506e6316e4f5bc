//! `dafs cp`: `get` and `put` under the name that everybody types first, and copies between servers.

use super::operands::sources_and_target;
use crate::copy::view::Operand;
use crate::copy::{self, CopyOptions};
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use crate::session::Sessions;
use std::ffi::OsString;

/// Copy files and directory trees from a server to this host, the other way round, or between servers
///
/// The same as get where the target is on this host, and as put where it is a URL. Sources may be URLs
/// then, too, of the same server or of others. Their data goes through this host.
#[derive(Debug, clap::Args)]
#[command(override_usage = "dafs cp [OPTIONS] <SOURCE>... <TARGET>")]
pub(crate) struct Cp {
    /// The files and directories to copy, and last the target: a directory, or the name of the copy. Each is
    /// a path of this host, or a URL
    #[arg(required = true, num_args = 1.., value_name = "OPERAND")]
    operands: Vec<OsString>,
    #[command(flatten)]
    options: CopyOptions,
}

impl Cp {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        sessions.expect_many_threads();
        let (sources, target) = sources_and_target(&self.operands, "TARGET")?;
        let sources = sources.iter().map(|source| Operand::parse(source));
        let sources = sources.collect::<Result<Vec<Operand>, Failure>>()?;
        let target = match Operand::parse(target)? {
            Operand::Remote(target) => {
                return copy::put::run(sessions, &sources, &target, &self.options);
            }
            Operand::Local(target) => target,
        };
        let url = |source: Operand| match source {
            Operand::Remote(url) => Ok(url),
            Operand::Local(_) => Err(Failure::Usage(
                "a source and the target are both on this host; use cp -a, or name one of them by \
                 its URL"
                    .to_owned(),
            )),
        };
        let urls = sources.into_iter().map(url).collect::<Result<Vec<RemoteUrl>, Failure>>()?;
        copy::get::run(sessions, &urls, &target, &self.options)
    }
}
