//! The journal of changes in the state directory, for exports with durable replies.

use super::StartError;
use super::inventory::{Inventory, JOURNAL};
use super::state::hash_of_key;
use crate::config::ExportConfig;
use dafs_journal::{Disk, FileDisk, SEGMENT_BYTES, Workers};
use dafs_service::Service;
use dafs_service::durable::{Durability, JournalConfig};
use std::path::Path;
use std::sync::Arc;

/// One thread makes the journal stable, and one the changed objects.
const WORKERS: usize = 2;

/// True if any of these exports has durable replies.
pub(super) fn is_wanted(exports: &[ExportConfig]) -> bool {
    exports.iter().any(|export| export.options.durable_replies != Durability::Off)
}

/// True if an earlier run has left a journal, or it should exist. It is recovered before any other
/// change, even if no export has durable replies now. Otherwise its records would be wrong later.
pub(super) fn is_left(directory: &Path, inventory: &Inventory) -> bool {
    inventory.known(JOURNAL).is_some()
        || std::fs::read_dir(directory.join(JOURNAL))
            .is_ok_and(|mut entries| entries.next().is_some())
}

/// Recovers the changes of the last run, and begins a new journal. Returns the threads that serve
/// it.
///
/// # Errors
/// The error of the journal, and the possible solutions. The journal is left unchanged.
pub(super) fn start(
    directory: &Path,
    inventory: &mut Inventory,
    service: &Service,
) -> Result<Workers, StartError> {
    let path = directory.join(JOURNAL);
    let failed = |error| StartError::JournalDirectory { path: path.clone(), error };
    let known = inventory.known(JOURNAL).is_some();
    if known && !path.try_exists().map_err(failed)? {
        Err(inventory.lost(JOURNAL, "it is missing"))?;
    }
    let disk = FileDisk::open(&path, as_server).map_err(failed)?;
    // There is a segment from the first start on.
    if known && disk.list().map_err(failed)?.is_empty() {
        Err(inventory.lost(JOURNAL, "its segments are missing"))?;
    }
    let hash = hash_of_key(&disk.key(), b"journal");
    if inventory.known(JOURNAL).is_some_and(|known| known.instance != hash) {
        Err(inventory.lost(JOURNAL, "its key is another one than the server has used before"))?;
    }
    let workers = Workers::start("dafs-journal", WORKERS)?;
    let journal = JournalConfig {
        disk: Arc::new(disk),
        boot: boot()?,
        segment_bytes: SEGMENT_BYTES,
        spawn: workers.spawn(),
    };
    let recovered = service.durable.start_journal(journal, dafs_dat::Instant::now().0)?;
    inventory.note_key(JOURNAL, hash)?;
    tracing::info!(
        journal = %path.display(),
        sessions = recovered.sessions,
        replies = recovered.replies,
        happened = recovered.happened,
        not_happened = recovered.not_happened,
        lost = recovered.lost,
        "replies of the last run were recovered"
    );
    if !service.durable.keeps_all_replies() {
        tracing::info!(
            "NFSv4 sessions do not outlive the server: some exports keep no durable replies"
        );
    }
    if recovered.lost > 0 {
        tracing::warn!(
            changes = recovered.lost,
            "the system was restarted, or exports are gone: clients cannot learn what became of \
             these changes"
        );
    }
    Ok(workers)
}

/// Store calls leave threads with the user of their callers, so the thread takes back the server's.
fn as_server() {
    if let Err(error) = dafs_mem::sys::as_server() {
        tracing::error!(%error, "a thread of the journal does not have the server's user id");
    }
}

/// Returns the id of this boot of the system. Where the system has none, each start of the server
/// counts as a boot, and unstable data is not trusted.
fn boot() -> Result<[u8; 16], StartError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let mut boot = [0; 16];
    if digits.len() == 32 {
        for (byte, pair) in boot.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
    } else {
        getrandom::fill(&mut boot)
            .map_err(|error| StartError::System(std::io::Error::other(error)))?;
    }
    Ok(boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_the_system_stays_the_same() {
        let boot_id = boot().unwrap();
        assert_ne!(boot_id, [0; 16]);
        assert_eq!(boot_id, boot().unwrap());
    }
}
