//! Damage to copies on the disks of data servers: what a comparison finds, and what it repairs.

use super::common::{pattern, session};
use super::striped::{config, create};
use dafs_server::{
    AdminReply, AdminRequest, ExportSource, ScrubOrder, ScrubReport, Server, ask_server,
};
use dafs_testkit::eventually;
use dafs_wire::nfs4::StableHow;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

fn order(base: &Path, order: ScrubOrder) -> ScrubReport {
    let request = AdminRequest::Scrub { export: None, order };
    match ask_server(&base.join("state"), &request).unwrap() {
        AdminReply::Scrub(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Compares all copies. Files that were just written are compared a little later.
fn scrub(base: &Path, mend: bool) -> ScrubReport {
    let mut report = ScrubReport::default();
    eventually("no file is in use", || {
        order(base, ScrubOrder::Start { bytes_per_second: None, mend });
        eventually("the comparison ends", || !order(base, ScrubOrder::Show).running);
        report = order(base, ScrubOrder::Show);
        report.in_use_files == 0
    });
    assert_eq!((report.away_files, report.trouble.as_str()), (0, ""));
    report
}

/// Returns the files of the nodes with the only component of this length, by the numbers of the
/// nodes.
fn components(base: &Path, len: usize) -> Vec<(u32, PathBuf)> {
    let below = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let on_node = |number: u32| {
        let directories = below(&base.join(format!("node{number}"))).filter(|path| path.is_dir());
        let files = directories.flat_map(|path| below(&path).collect::<Vec<_>>());
        let mut whole = files.filter(|path| fs::metadata(path).unwrap().len() == len as u64);
        whole.next().map(|path| (number, path))
    };
    (1..=3).filter_map(on_node).collect()
}

fn are_equal(copies: &[(u32, PathBuf)], bytes: &[u8]) -> bool {
    copies.iter().all(|(_, path)| fs::read(path).unwrap() == bytes)
}

#[test]
fn damaged_copies_are_found_and_repaired_where_the_right_one_is_known() {
    let dir = TempDir::new().unwrap();
    let base = dir.path();
    let mut config = config(base);
    let ExportSource::Striped { copies, .. } = &mut config.exports[0].source else {
        panic!("an export of nodes")
    };
    *copies = 2;
    config.exports[0].mend_idle = Duration::from_millis(250);
    let server = Server::start(&config).unwrap();
    let show = AdminRequest::Scrub { export: None, order: ScrubOrder::Show };
    let none = ask_server(&base.join("state"), &show).unwrap();
    assert!(matches!(&none, AdminReply::Failed(text) if text.contains("no copies were compared")));
    let client = session(&server, b"plain");
    let bytes = pattern(3_000_000, 1);
    let file = create(&client, b"f");
    for (number, part) in bytes.chunks(500_000).enumerate() {
        let offset = 500_000 * number as u64;
        let written = client.write(&file.handle, file.stateid, offset, part, StableHow::FileSync);
        assert_eq!(written.unwrap().count as usize, part.len());
    }
    client.close(&file).unwrap();
    let sound = scrub(base, true);
    assert_eq!((sound.files, sound.bytes, sound.faulty_files), (1, 3_000_000, 0));

    let copies = components(base, bytes.len());
    assert_eq!(copies.len(), 2);
    let (first, path) = &copies[0];
    let damaged = OpenOptions::new().write(true).open(path).unwrap();
    damaged.set_len(0).unwrap();
    let seen = scrub(base, false);
    assert_eq!((seen.faulty_files, seen.mended_files), (1, 0));
    let fault = &seen.faults[0];
    assert_eq!((fault.path.as_str(), fault.node), ("/f", *first));
    assert_eq!((fault.fault.as_str(), fault.right), ("missing", Some(copies[1].0)));
    assert!(!fault.mended && fs::metadata(path).unwrap().len() == 0, "nothing was changed");
    assert_eq!(scrub(base, true).mended_files, 1);
    eventually("the lost copy is made anew", || are_equal(&copies, &bytes));
    assert_eq!(scrub(base, true).faulty_files, 0);

    // Of two copies that differ neither is known to be right.
    damaged.write_all_at(&[bytes[2_000_000] ^ 1], 2_000_000).unwrap();
    let seen = scrub(base, true);
    assert_eq!((seen.faulty_files, seen.mended_files, seen.faults.len()), (1, 0, 2));
    assert!(seen.faults.iter().all(|fault| fault.fault == "differs" && fault.right.is_none()));
    assert!(!are_equal(&copies, &bytes), "nothing was changed");
    let repair = AdminRequest::Repair { path: "/f".to_owned(), node: copies[1].0 };
    let told = ask_server(&base.join("state"), &repair).unwrap();
    assert!(matches!(&told, AdminReply::Done(_)), "{told:?}");
    eventually("the copies are equal", || are_equal(&copies, &bytes));
    server.stop();
}
