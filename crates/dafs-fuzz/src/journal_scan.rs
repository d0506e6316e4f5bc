//! Segments of any content are read as a journal or refused; what is read is read again after a new
//! beginning.

use dafs_journal::Recovery;
use dafs_journal::sim::SimDisk;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const BOOT: [u8; 16] = [1; 16];

fn scan(disk: &Arc<SimDisk>) -> Option<(Vec<Vec<u8>>, Recovery)> {
    let mut found = Vec::new();
    let mut sink = |record: &[u8]| found.push(record.to_vec());
    let recovery = Recovery::scan(disk.clone(), BOOT, &mut sink).ok()?;
    Some((found, recovery))
}

pub fn run(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let disk = Arc::new(SimDisk::new());
    // One segment, or two of equal length.
    let middle = if how & 1 == 0 { data.len() } else { data.len() / 2 };
    let (first, second) = data.split_at(middle);
    disk.tamper(1, |content| *content = first.to_vec());
    if how & 1 != 0 {
        disk.tamper(2, |content| *content = second.to_vec());
    }
    let Some((found, recovery)) = scan(&disk) else { return };
    // The fuzzer solves checksums, so it would forge records of later segments. An attacker needs
    // the key for that.
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    disk.change_key(u128::from(hasher.finish()).to_le_bytes());
    let mut live = found.iter().map(Vec::as_slice);
    let log = recovery.start(4096, Arc::new(|job| job()), &mut live);
    assert!(log.is_ok());
    assert_eq!(scan(&disk).map(|(found, _)| found), Some(found));
}
