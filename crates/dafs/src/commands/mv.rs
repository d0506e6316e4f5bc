//! `dafs mv`: renames on one server.

use super::for_each;
use super::operands::{sources_and_target, url, urls};
use crate::failure::Failure;
use crate::remote::{Error, Follow, Place, Remote, RemoteUrl};
use crate::session::Sessions;
use crate::show;
use std::ffi::OsString;

/// Rename files and directories on one server, replacing an object of the new name
#[derive(Debug, clap::Args)]
#[command(override_usage = "dafs mv [OPTIONS] <SOURCE>... <TARGET>")]
pub(crate) struct Mv {
    /// The files and directories to rename or move, and last the target: the new name, or a directory to move
    /// into
    #[arg(required = true, num_args = 1.., value_name = "OPERAND")]
    operands: Vec<OsString>,
}

impl Mv {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let (sources, target) = sources_and_target(&self.operands, "TARGET")?;
        let (sources, target) = (urls(sources)?, url(target)?);
        for_each(&sources, |source| {
            let client = sessions.shared(source, &target)?;
            let failed = |error| Failure::remote(source, &error);
            let from = client.resolve_parent(source.path()).map_err(failed)?;
            let to = match into(&client, &target, source, sources.len() > 1)? {
                Some(place) => place,
                None => {
                    let places = client.resolve_rename(source.path(), target.path());
                    places.map_err(|error| Failure::remote(&target, &error))?.1
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
