//! `dafs ln`: hard and symbolic links.

use super::mv::into;
use crate::failure::Failure;
use crate::remote::{Follow, RemoteUrl};
use crate::session::Sessions;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Make a hard link, or with -s a symlink
#[derive(Debug, clap::Args)]
pub(crate) struct Ln {
    /// The target of the link: a URL, or with -s the text of the symlink
    target: OsString,
    /// The link, or for a hard link a directory to put it into
    link: RemoteUrl,
    /// Make a symlink
    #[arg(short, long)]
    symbolic: bool,
}

impl Ln {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let failed = |error| Failure::remote(&self.link, &error);
        if self.symbolic {
            let client = sessions.client(&self.link)?;
            let place = client.resolve_parent(self.link.path()).map_err(failed)?;
            client.symlink(&place.dir, &place.name, self.target.as_bytes()).map_err(failed)?;
            return Ok(());
        }
        let text = self.target.to_string_lossy();
        let target = RemoteUrl::parse(&text)
            .map_err(|error| Failure::Usage(format!("{error}; for a symlink add -s")))?;
        let client = sessions.shared(&target, &self.link)?;
        let found = client
            .resolve(target.path(), Follow::No)
            .map_err(|error| Failure::remote(&target, &error))?;
        let place = match into(&client, &self.link, &target, false)? {
            Some(place) => place,
            None => client.resolve_parent(self.link.path()).map_err(failed)?,
        };
        client.link(&found.handle, &place.dir, &place.name).map_err(failed)
    }
}
