//! Files that GlusterFS moves to other bricks while data servers write them, on a cluster of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../dafs-store/tests/common/mod.rs"]
mod common;
mod support;

use dafs_store::*;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 12;
const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;
/// Far more than it ever takes.
const REBALANCE_MAX: Duration = Duration::from_secs(300);

fn admin(dir: &Path, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/engines/glusterfs.sh");
    let output =
        Command::new("bash").arg(script).arg("admin").arg(dir).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(file: &dyn DataFile, block: usize, stamp: u32) {
    let bytes = stamp.to_le_bytes().repeat(BLOCK / 4);
    assert_eq!(common::write(file, (block * BLOCK) as u64, &bytes), Ok(BLOCK));
}

#[test]
fn files_that_are_moved_while_they_are_written_lose_nothing() {
    let Some((store, servers)) = support::served() else { return };
    let (cred, root) = (common::me(), store.root());
    let mut files = Vec::new();
    for number in 0..FILES {
        let made = support::make(&store, &format!("file {number}"));
        let (at, id) = support::placed(&store, &made.id);
        let file = servers[at].open(&id).unwrap();
        let whole = common::write(&*file, 0, &vec![0; BLOCK * BLOCKS]);
        assert_eq!(whole, Ok(BLOCK * BLOCKS));
        // By its new name most files belong to other bricks.
        let (old, new) = (format!("file {number}"), format!("other {number}"));
        store.rename(&cred, &root, old.as_bytes(), &root, new.as_bytes()).unwrap();
        files.push((made.id, at, file));
    }
    let over = AtomicBool::new(false);
    let written: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let write_until_over = |file: &dyn DataFile, seed: usize| {
            let (mut stamps, mut at, mut stamp) = (vec![0; BLOCKS], seed, 0);
            while !over.load(Ordering::Relaxed) {
                at = (at * 1_103 + 12_345) % BLOCKS;
                stamp += 1;
                write(file, at, stamp);
                stamps[at] = stamp;
            }
            stamps
        };
        let writers: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(seed, (_, _, file))| scope.spawn(move || write_until_over(&**file, seed)))
            .collect();
        let dir = &support::cluster().unwrap().dir;
        let started = admin(dir, &["volume", "rebalance", "dist", "start", "force"]);
        let began = Instant::now();
        let ended = loop {
            let status = admin(dir, &["volume", "rebalance", "dist", "status"]);
            let is_over = status.contains("completed") && !status.contains("in progress");
            if is_over || began.elapsed() > REBALANCE_MAX {
                break status;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        over.store(true, Ordering::Relaxed);
        assert!(started.contains("success") && ended.contains("completed"), "{started}{ended}");
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let mut moved = 0;
    for ((id, before, file), stamps) in files.iter().zip(&written) {
        let wanted: Vec<u8> =
            stamps.iter().flat_map(|stamp| stamp.to_le_bytes().repeat(BLOCK / 4)).collect();
        let through = store.open(&cred, id, common::READ).unwrap();
        assert!(
            common::read(&*through, 0, wanted.len() + 1).unwrap() == wanted,
            "lost by GlusterFS"
        );
        assert!(common::read(&**file, 0, wanted.len() + 1).unwrap() == wanted, "by the old layout");
        let (at, id) = support::placed(&store, id);
        let now = servers[at].open(&id).unwrap();
        assert!(common::read(&*now, 0, wanted.len() + 1).unwrap() == wanted, "by the new layout");
        moved += usize::from(at != *before);
    }
    println!("{moved} of {FILES} files have moved");
    assert!(moved > 0, "nothing has moved, so nothing was tried");
}
