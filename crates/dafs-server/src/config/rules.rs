//! Rules of exports: the callers that they admit, and the memory in which they show files.

use super::{ExportSource, OPTIMISTIC_BYTES_MIN, Wrong, wrong};
use dafs_service::Admits;
use dafs_tls::NoTransportSecurity;

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

/// Checks that the files of an export may be shown, if they are to be.
pub(super) fn check_optimistic(
    optimistic: bool,
    source: &ExportSource,
    wrong: &dyn Fn(&str, String) -> Wrong,
) -> Result<(), Wrong> {
    match source {
        ExportSource::Directory(_) | ExportSource::Memory { .. } => Ok(()),
        _ if optimistic => {
            let remedy = "only files of one directory or in memory are shown; leave it out";
            Err(wrong("optimistic", remedy.to_owned()))
        }
        _ => Ok(()),
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
