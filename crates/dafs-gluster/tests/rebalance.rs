//! Files that GlusterFS moves to other bricks while data servers write and read them, on a cluster
//! of its own.
//!
//! GlusterFS leaves a file where it is if a client writes it during the copy, because it could not
//! order the two writes. So only files without writers are certain to move. Of the others some do,
//! depending on the speed of the machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use dafs_store::*;
use dafs_testkit::stores;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILES: usize = 18;
/// A third of the files is written all the time, a third now and then, and a third is only read.
const KINDS: usize = 3;
const NOW_AND_THEN: Duration = Duration::from_millis(100);
const BLOCK: usize = 4096;
const BLOCKS: usize = 512;
/// Far longer than it ever takes.
const REBALANCE_MAX: Duration = Duration::from_secs(300);

fn admin(dir: &Path, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/engines/glusterfs.sh");
    let output =
        Command::new("bash").arg(script).arg("admin").arg(dir).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(file: &dyn DataFile, block: usize, stamp: u32) {
    let bytes = stamp.to_le_bytes().repeat(BLOCK / 4);
    assert_eq!(stores::write(file, (block * BLOCK) as u64, &bytes), Ok(BLOCK));
}

#[test]
fn files_that_are_moved_while_they_are_written_lose_nothing() {
    let Some((store, servers)) = support::served() else { return };
    let (cred, root) = (stores::me(), store.root());
    let mut files = Vec::new();
    for number in 0..FILES {
        let made = support::make(&store, &format!("file {number}"));
        let (at, id) = support::placed(&store, &made.id);
        let file = servers[at].open(&id).unwrap();
        let whole = stores::write(&*file, 0, &vec![0; BLOCK * BLOCKS]);
        assert_eq!(whole, Ok(BLOCK * BLOCKS));
        // By their new names most files belong to other bricks.
        let (old, new) = (format!("file {number}"), format!("other {number}"));
        store.rename(&cred, &root, old.as_bytes(), &root, new.as_bytes()).unwrap();
        files.push((made.id, at, file));
    }
    let over = AtomicBool::new(false);
    let (written, ended): (Vec<Vec<u32>>, String) = std::thread::scope(|scope| {
        let work_until_over = |file: &dyn DataFile, seed: usize| {
            let (mut stamps, mut at, mut stamp) = (vec![0; BLOCKS], seed, 0);
            while !over.load(Ordering::Relaxed) {
                if seed % KINDS == 2 {
                    assert_eq!(stores::read(file, 0, BLOCK), Ok(vec![0; BLOCK]));
                    std::thread::sleep(NOW_AND_THEN / 10);
                    continue;
                }
                if seed % KINDS == 1 {
                    std::thread::sleep(NOW_AND_THEN);
                }
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
            .map(|(seed, (_, _, file))| scope.spawn(move || work_until_over(&**file, seed)))
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
        let written = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        (written, ended)
    });
    let mut moved = [0; KINDS];
    for (number, ((id, before, file), stamps)) in files.iter().zip(&written).enumerate() {
        let wanted: Vec<u8> =
            stamps.iter().flat_map(|stamp| stamp.to_le_bytes().repeat(BLOCK / 4)).collect();
        let through = store.open(&cred, id, stores::READ).unwrap();
        assert!(
            stores::read(&*through, 0, wanted.len() + 1).unwrap() == wanted,
            "lost by GlusterFS"
        );
        assert!(stores::read(&**file, 0, wanted.len() + 1).unwrap() == wanted, "by the old layout");
        let (at, id) = support::placed(&store, id);
        let now = servers[at].open(&id).unwrap();
        assert!(stores::read(&*now, 0, wanted.len() + 1).unwrap() == wanted, "by the new layout");
        moved[number % KINDS] += usize::from(at != *before);
    }
    println!("of {FILES} files these have moved: {moved:?}");
    // By their new names two thirds belong to other bricks.
    assert!(moved[2] > 0, "nothing has moved, so nothing was tried: {ended}");
}
