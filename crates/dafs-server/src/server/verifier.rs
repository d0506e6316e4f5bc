//! The write verifier over the end of the server's process, which loses no data: what was written is in
//! the system's memory.
//!
//! Invariants
//! * A verifier comes back only in the same run of the system, for exports on the same mounts, and when no
//!   write to a device has failed since: nothing else can have lost what was not stable.
//! * It is written down before anybody gets it, and so is each one that replaces it.

use super::journal;
use crate::config::{ExportConfig, ExportSource};
use dafs_service::WriteVerifier;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::io;
use std::path::Path;

/// The file in the state directory.
const FILE: &str = "write-verifier";

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): the number of a mount that no other one had or will have in this
/// run of the system.
const MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The verifier of the last run of the server when it still holds, else `fresh`.
pub(super) fn recall(directory: &Path, exports: &[ExportConfig], fresh: u64) -> WriteVerifier {
    let Some(life) = life(exports) else { return WriteVerifier::new(fresh) };
    let path = directory.join(FILE);
    let known = std::fs::read_to_string(&path).ok();
    let value = known.and_then(|text| parse(&text, &life)).unwrap_or(fresh);
    match keep(&path, &life, value) {
        Ok(()) => {
            WriteVerifier::kept(value, Box::new(move |value| drop(keep(&path, &life, value))))
        }
        Err(_) => WriteVerifier::new(fresh),
    }
}

/// Writes down a verifier. If that fails, the next start has one of its own.
fn keep(path: &Path, life: &str, value: u64) -> io::Result<()> {
    write(path, life, value).inspect_err(|error| {
        tracing::warn!(
            file = %path.display(), %error,
            "the write verifier cannot be kept: clients write their unstable data again after the next \
             start"
        );
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::error!(
                file = %path.display(), %error,
                "cannot note that unstable data may be lost: remove the file before the next start"
            ),
            _ => {}
        }
    })
}

/// What must be the same for unstable data to be there still; `None` when the system does not tell.
fn life(exports: &[ExportConfig]) -> Option<String> {
    let mounts = exports.iter().map(|export| match &export.source {
        ExportSource::Directory(path) => mount(path),
        // It ends with the process.
        _ => None,
    });
    let mut mounts = mounts.collect::<Option<Vec<_>>>()?;
    mounts.sort_unstable();
    mounts.dedup();
    let boot = u128::from_be_bytes(journal::boot().ok()?);
    let mounts: Vec<_> = mounts.iter().map(u64::to_string).collect();
    Some(format!("{boot:032x} {}", mounts.join(",")))
}

fn mount(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), MOUNT_ID).ok()?;
    (stat.stx_mask & MOUNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

fn parse(text: &str, life: &str) -> Option<u64> {
    let value = text.strip_prefix(life)?.strip_prefix(' ')?.strip_suffix('\n')?;
    u64::from_str_radix(value, 16).ok()
}

/// What it says is of no use after a loss of power, so it need not be stable.
fn write(path: &Path, life: &str, value: u64) -> io::Result<()> {
    let aside = path.with_extension("new");
    std::fs::write(&aside, format!("{life} {value:x}\n"))?;
    std::fs::rename(&aside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::ExportOptions;

    fn exports(paths: &[&Path]) -> Vec<ExportConfig> {
        let export = |path: &&Path| ExportConfig {
            name: String::new(),
            source: ExportSource::Directory(path.to_path_buf()),
            options: ExportOptions::default(),
        };
        paths.iter().map(export).collect()
    }

    #[test]
    fn a_verifier_comes_back_until_a_write_fails() {
        let directory = tempfile::tempdir().unwrap();
        let (state, one) = (directory.path(), exports(&[directory.path()]));
        if life(&one).is_none() {
            // Before Linux 6.8 each start has one of its own.
            assert_eq!(recall(state, &one, 7).current(), 7_u64.to_be_bytes());
            assert!(!state.join(FILE).exists());
            return;
        }
        assert_eq!(recall(state, &one, 7).current(), 7_u64.to_be_bytes());
        let second = recall(state, &one, 8);
        assert_eq!(second.current(), 7_u64.to_be_bytes());
        second.change();
        let changed = second.current();
        assert_ne!(changed, 7_u64.to_be_bytes());
        assert_eq!(recall(state, &one, 9).current(), changed);
        // Another mount is another life.
        let both = exports(&[state, Path::new("/proc")]);
        assert_eq!(recall(state, &both, 10).current(), 10_u64.to_be_bytes());
        assert_eq!(recall(state, &one, 11).current(), 11_u64.to_be_bytes());
        std::fs::write(state.join(FILE), "nonsense\n").unwrap();
        assert_eq!(recall(state, &one, 12).current(), 12_u64.to_be_bytes());
    }

    #[test]
    fn a_verifier_that_cannot_be_written_down_is_not_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let (state, one) = (directory.path(), exports(&[directory.path()]));
        drop(recall(state, &one, 7));
        std::fs::create_dir(state.join("write-verifier.new")).unwrap();
        assert_eq!(recall(state, &one, 8).current(), 8_u64.to_be_bytes());
        assert!(!state.join(FILE).exists());
    }

    #[test]
    fn only_the_same_life_is_believed() {
        assert_eq!(parse("a 1 ff\n", "a 1"), Some(255));
        for text in ["a 1 ff", "a 1,2 ff\n", "a 2 ff\n", "a 1 \n", "", "a 1 fg\n"] {
            assert_eq!(parse(text, "a 1"), None, "{text:?}");
        }
    }
}
