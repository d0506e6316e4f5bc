//! An interval as lines, for pipes, files and terminals that can only print.

use super::activity::Activity;
use crate::failure::Failure;
use crate::output::say;
use crate::show::readable;
use indicatif::BinaryBytes;

/// Prints an interval with so many clients.
pub(super) fn show(activity: &Activity, clients_max: usize) -> Result<(), Failure> {
    let shown = &activity.optimistic;
    say!(
        "optimistic reads: {} files and {} small ones, blocks of 4 KiB: {} shown, {} waiting, {} free; \
         requests for these files {:.0}/s",
        shown.files,
        shown.small_files,
        shown.frames_published,
        shown.frames_waiting,
        shown.frames_free,
        shown.missed
    )?;
    say!(
        "blocks per second: {:.0} put there, {:.0} in vain, {:.0} changed, {:.0} made room, {:.0} \
         came back; segments given away {:.1}/s",
        shown.published,
        shown.wasted,
        shown.changed,
        shown.evicted,
        shown.restored,
        shown.given
    )?;
    say!(
        "{:>16} {:<9} {:>10} {:>12} {:>12}  name",
        "client",
        "transport",
        "requests/s",
        "read/s",
        "written/s"
    )?;
    let bytes = |rate: f64| BinaryBytes(rate as u64).to_string();
    activity.clients.iter().take(clients_max).try_for_each(|client| {
        say!(
            "{:>16} {:<9} {:>10.0} {:>12} {:>12}  {}",
            client.client,
            readable(client.transport.as_bytes()),
            client.work.requests,
            bytes(client.work.read_bytes),
            bytes(client.work.written_bytes),
            readable(client.name.as_bytes())
        )
    })
}
