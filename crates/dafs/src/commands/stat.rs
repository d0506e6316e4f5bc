//! `dafs stat`: all attributes of an object.

use super::for_each;
use crate::failure::Failure;
use crate::output::say;
use crate::remote::{Follow, RemoteUrl};
use crate::session::Sessions;
use crate::show;

/// Show all attributes of files and directories
#[derive(Debug, clap::Args)]
pub(crate) struct Stat {
    /// The files and directories
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Follow symlinks
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Stat {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            let follow = if self.dereference { Follow::Yes } else { Follow::No };
            let found =
                client.resolve(url.path(), follow).map_err(|error| Failure::remote(url, &error))?;
            let attributes = &found.attributes;
            if self.json {
                return say!("{}", show::object_json(url, show::last_name(url), attributes));
            }
            say!("   What: {url}")?;
            if attributes.is_symlink()
                && let Ok(text) = client.readlink(&found.handle)
            {
                say!("  Leads: {}", show::readable(&text))?;
            }
            say!(
                "   Type: {}  Mode: {:04o} {}  Links: {}",
                show::kind(attributes.kind),
                attributes.mode,
                show::mode_letters(attributes.kind, attributes.mode),
                attributes.links,
            )?;
            say!(
                "   Size: {}  Allocated: {}  File id: {}  Owner: {}  Group: {}",
                attributes.size,
                attributes.space_used,
                attributes.file_id,
                show::owner(&attributes.owner),
                show::owner(&attributes.group),
            )?;
            say!(" Access: {}", show::nanosecond(attributes.accessed))?;
            say!(" Modify: {}", show::nanosecond(attributes.modified))?;
            say!(" Change: {}", show::nanosecond(attributes.changed))?;
            say!("  Birth: {}", show::nanosecond(attributes.created))
        })
    }
}
