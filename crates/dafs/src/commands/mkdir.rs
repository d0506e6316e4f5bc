//! `dafs mkdir`: makes directories.

use super::for_each;
use crate::failure::{Failure, words};
use crate::remote::{Error, Follow, Found, Handle, Remote, RemoteUrl, SetAttributes, Status};
use crate::session::Sessions;
use dafs_client::SplitPath;

/// Make directories
#[derive(Debug, clap::Args)]
pub(crate) struct Mkdir {
    /// The directories to make
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Make the parent directories too, and succeed if it exists
    #[arg(short, long)]
    parents: bool,
    /// Permissions in octal; 777 less the umask if left out
    #[arg(short, long, value_name = "MODE", value_parser = octal_mode)]
    mode: Option<u32>,
}

fn octal_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("write an octal number up to 7777, such as 755".to_owned()),
    }
}

impl Mkdir {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let default = 0o777 & !umask();
        for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            if self.parents {
                return self.make_all(&client, url, default);
            }
            let attributes = SetAttributes::mode(self.mode.unwrap_or(default));
            client
                .resolve_new_directory(url.path())
                .and_then(|place| client.mkdir(&place.dir, &place.name, &attributes))
                .map(drop)
                .map_err(|error| match error.status() {
                    Some(Status::NoEnt) => {
                        let text = words(&error);
                        Failure::Failed(format!("{url}: {text}; -p makes its parents, too"))
                    }
                    _ => Failure::remote(url, &error),
                })
        })
    }

    fn make_all(&self, client: &Remote, url: &RemoteUrl, default: u32) -> Result<(), Failure> {
        let failed = |error: Error| Failure::remote(url, &error);
        let names = url.path().split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<&[u8]> = names.collect();
        let path = |count: usize| [b"/", &names[..count].join(&b'/')[..]].concat();
        // The search for an existing directory goes upwards: parents further up may not be
        // readable.
        let mut there = names.len();
        let mut at = loop {
            match client.resolve(&path(there), Follow::Yes) {
                Ok(found) => {
                    let name = names.get(there.saturating_sub(1)).copied().unwrap_or_default();
                    break directory(found, url, name)?;
                }
                Err(error)
                    if there > 0
                        && matches!(error.status(), Some(Status::NoEnt | Status::NotDir)) =>
                {
                    there -= 1;
                }
                Err(error) => return Err(failed(error)),
            }
        };
        for (index, name) in names.iter().enumerate().skip(there) {
            if SplitPath::of(name).ends_in_dots() {
                let found = client.resolve(&path(index + 1), Follow::Yes).map_err(failed)?;
                at = directory(found, url, name)?;
                continue;
            }
            let mode =
                if index + 1 == names.len() { self.mode.unwrap_or(default) } else { default };
            at = match client.mkdir(&at, name, &SetAttributes::mode(mode)) {
                // Another client was faster, or it is a link that leads nowhere.
                Err(error) if error.status() == Some(Status::Exist) => {
                    match client.resolve(&path(index + 1), Follow::Yes) {
                        Ok(found) => directory(found, url, name)?,
                        Err(_) => return Err(failed(error)),
                    }
                }
                other => other.map_err(failed)?,
            };
        }
        Ok(())
    }
}

fn directory(found: Found, url: &RemoteUrl, name: &[u8]) -> Result<Handle, Failure> {
    if found.attributes.is_directory() {
        return Ok(found.handle);
    }
    Err(Failure::Failed(format!("{url}: {} is no directory", String::from_utf8_lossy(name))))
}

/// The umask of this process. Reading it requires setting it.
pub(crate) fn umask() -> u32 {
    use rustix::fs::Mode;
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}
