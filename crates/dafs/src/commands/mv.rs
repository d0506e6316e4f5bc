//! `dafs mv`: renames on one server.

use super::for_each;
use crate::failure::Failure;
use crate::remote::{Error, Follow, Place, Remote, RemoteUrl};
use crate::session::Sessions;
use crate::show;

/// Rename files and directories on one server, replacing an object of the new name
#[derive(Debug, clap::Args)]
pub(crate) struct Mv {
    /// The files and directories to rename or move
    #[arg(required = true, num_args = 1..)]
    sources: Vec<RemoteUrl>,
    /// The new name, or a directory to move into
    #[arg(required = true)]
    target: RemoteUrl,
}

impl Mv {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        for_each(&self.sources, |source| {
            let client = sessions.shared(source, &self.target)?;
            let failed = |error| Failure::remote(source, &error);
            let from = client.resolve_parent(source.path()).map_err(failed)?;
            let to = match into(&client, &self.target, source, self.sources.len() > 1)? {
                Some(place) => place,
                None => {
                    let places = client.resolve_rename(source.path(), self.target.path());
                    places.map_err(|error| Failure::remote(&self.target, &error))?.1
                }
            };
            client
                .rename(&from.dir, &from.name, &to.dir, &to.name)
                .map_err(|error| failed(of_source(&client, &from, error)))
        })
    }
}

/// The error of a failed rename. For a mount point the server only reports that it is refused.
fn of_source(client: &Remote, from: &Place, error: Error) -> Error {
    if error.is_fatal() {
        return error;
    }
    match client.lookup(&from.dir, &from.name) {
        Err(found) if found.is_mount_point() => found,
        _ => error,
    }
}

/// The place of `source`'s new name: in `target` if that is a directory, else `target` itself.
pub(crate) fn into(
    client: &Remote,
    target: &RemoteUrl,
    source: &RemoteUrl,
    several: bool,
) -> Result<Option<Place>, Failure> {
    match client.resolve(target.path(), Follow::Yes) {
        Ok(found) if found.attributes.is_directory() => {
            let name = show::last_name(source).to_vec();
            Ok(Some(Place { dir: found.handle, name }))
        }
        Err(error) if error.is_fatal() || error.is_mount_point() => {
            Err(Failure::remote(target, &error))
        }
        _ if several => Err(Failure::Usage(format!(
            "{target} is no directory, and several things cannot go to one name"
        ))),
        _ => Ok(None),
    }
}
