//! Rules of exports: the callers that they admit, and the memory in which they show files.

use super::{ExportSource, OPTIMISTIC_BYTES_MIN, Wrong, parse_listen, wrong};
use dafs_service::{Admits, OptimisticReads};
use dafs_tls::NoTransportSecurity;
use serde::Deserialize;
use std::net::SocketAddr;

/// The clients that an export shows its files to: a yes or a no, or a word.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use true for clients of this host, \"remote\" for others, too, or false"
)]
pub(super) enum OptimisticFile {
    Answer(bool),
    Word(OptimisticWord),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OptimisticWord {
    Remote,
}

/// A user, as a number or as a name.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum UserFile {
    /// A number.
    Number(u32),
    /// A name of this host, or a word that stands for users.
    Name(String),
}

/// Reads the address for administration.
pub(super) fn admin_listen(text: Option<&str>, has_tls: bool) -> Result<Option<SocketAddr>, Wrong> {
    let address =
        text.map(parse_listen).transpose().map_err(|error| wrong("admin_listen", error))?;
    match address.filter(|address| !has_tls && !address.ip().is_loopback()) {
        Some(_) => {
            let remedy = "other hosts would send their token in clear text: write [tls] with certificate = \
                          \"FILE\" and key = \"FILE\", or listen on 127.0.0.1";
            Err(wrong("admin_listen", remedy))
        }
        None => Ok(address),
    }
}

/// Reads the callers that an export admits. `wrong` makes the error of one of its keys.
pub(super) fn admits(
    networks: Option<&[String]>,
    sec: Option<&[String]>,
    transport_security: Option<&str>,
    wrong: &dyn Fn(&str, String) -> Wrong,
) -> Result<Admits, Wrong> {
    let mut admits = Admits::default();
    if let Some(networks) = networks {
        let parse = |text: &String| text.parse().map_err(|e: String| wrong("networks", e));
        admits.networks = networks.iter().map(parse).collect::<Result<_, _>>()?;
    }
    if let Some(sec) = sec {
        let parse = |text: &String| text.parse().map_err(|e: String| wrong("sec", e));
        admits.flavours = sec.iter().map(parse).collect::<Result<_, _>>()?;
    }
    if let Some(least) = transport_security {
        let wrong = |e: NoTransportSecurity| wrong("transport_security", e.to_string());
        admits.transport_security = least.parse().map_err(wrong)?;
    }
    Ok(admits)
}

/// Reads the clients that the files of an export are shown to. Checks that they may be shown.
pub(super) fn optimistic(
    given: Option<&OptimisticFile>,
    source: &ExportSource,
    wrong: &dyn Fn(&str, String) -> Wrong,
) -> Result<OptimisticReads, Wrong> {
    let optimistic = match given {
        None | Some(OptimisticFile::Answer(false)) => OptimisticReads::Off,
        Some(OptimisticFile::Answer(true)) => OptimisticReads::Local,
        Some(OptimisticFile::Word(OptimisticWord::Remote)) => OptimisticReads::Remote,
    };
    match source {
        ExportSource::Directory(_) | ExportSource::Memory { .. } => Ok(optimistic),
        _ if optimistic.is_on() => {
            let remedy = "only files of one directory or in memory are shown; leave it out";
            Err(wrong("optimistic", remedy.to_owned()))
        }
        _ => Ok(optimistic),
    }
}

/// Checks the memory for optimistic reads.
pub(super) fn optimistic_bytes(bytes: u64) -> Result<usize, Wrong> {
    let enough = usize::try_from(bytes).ok().filter(|bytes| *bytes >= OPTIMISTIC_BYTES_MIN);
    enough.ok_or_else(|| {
        let remedy = format!("use {OPTIMISTIC_BYTES_MIN} or more, or leave it out");
        wrong("optimistic_memory_bytes", remedy)
    })
}
