//! The requests to the metadata server that make writes at data servers stable.

use super::harness::{Cluster, UNIT, content, mount};
use super::io::Start;
use super::tamper::{Lies, Tamper};
use crate::common::{filled, new_file, pattern};
use dafs_nfs_client::mount::{OpenOptions, StableHow};
use dafs_wire::nfs4::OpNum;
use std::sync::atomic::{AtomicBool, Ordering};

const LEN: usize = 50 * UNIT + 77;

/// Layouts of whole files, as the server grants them.
const WHOLE: Start = Start(u64::MAX);

#[test]
fn data_that_only_data_servers_have_is_committed_there_alone() {
    let cluster = Cluster::new();
    let tamper = Tamper::new(cluster.address(), WHOLE);
    let mount = mount(tamper.address, "", true);
    let file = new_file(&mount, "/f");
    let bytes = pattern(LEN, 1);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    file.commit().unwrap();
    assert!(!tamper.compounds(OpNum::Layoutcommit).is_empty());
    assert_eq!(tamper.compounds(OpNum::Commit).len(), 0);
    // Nothing is unstable, so the caller gets the verifier of the server.
    file.commit().unwrap();
    assert_eq!(tamper.compounds(OpNum::Commit).len(), 1);
    let other = cluster.mount().open(b"/f", &OpenOptions::read()).unwrap();
    assert!(content(&other, LEN) == bytes);
}

#[test]
fn a_commit_covers_what_an_open_that_is_closed_wrote_through_the_server() {
    const PART: usize = 20 * UNIT;
    let cluster = Cluster::new();
    let tamper = Tamper::new(cluster.address(), Start(PART as u64));
    let mount = mount(tamper.address, "", true);
    let (file, before) = (new_file(&mount, "/f"), cluster.bytes());
    let closed = mount.open(b"/f", &OpenOptions::read_write()).unwrap();
    let bytes = pattern(LEN, 2);
    let memory = filled(&mount, &bytes);
    let (start, rest) = (memory.slice(0..PART).unwrap(), memory.slice(PART..LEN).unwrap());
    file.write(start.clone(), 0, StableHow::Unstable).unwrap();
    closed.write(rest, PART as u64, StableHow::Unstable).unwrap();
    closed.close().unwrap();
    let moved = cluster.since(&before);
    assert_eq!(moved.direct().written, PART as u64, "{moved:?}");
    assert_eq!(moved.server.written, (LEN - PART) as u64, "{moved:?}");
    file.commit().unwrap();
    assert_eq!(tamper.compounds(OpNum::Commit).len(), 1);
    file.write(start, 0, StableHow::Unstable).unwrap();
    file.commit().unwrap();
    assert_eq!(tamper.compounds(OpNum::Commit).len(), 1, "the server has made its part stable");
    let other = cluster.mount().open(b"/f", &OpenOptions::read()).unwrap();
    assert!(content(&other, LEN) == bytes);
}

#[test]
fn the_last_close_takes_the_report_of_the_writes_along() {
    let mut cluster = Cluster::new();
    let tamper = Tamper::new(cluster.address(), WHOLE);
    let mount = mount(tamper.address, "", true);
    let file = new_file(&mount, "/f");
    let bytes = pattern(LEN, 3);
    let memory = filled(&mount, &bytes);
    file.write(memory.slice(0..LEN - UNIT).unwrap(), 0, StableHow::Unstable).unwrap();
    file.commit().unwrap();
    let before = tamper.compounds(OpNum::Layoutcommit).len();
    let tail = memory.slice(LEN - UNIT..LEN).unwrap();
    file.write(tail, (LEN - UNIT) as u64, StableHow::Unstable).unwrap();
    file.close().unwrap();
    let told = tamper.compounds(OpNum::Layoutcommit).split_off(before);
    let together = [OpNum::Sequence, OpNum::Putfh, OpNum::Layoutcommit, OpNum::Close];
    assert_eq!(told, [together]);
    assert_eq!(tamper.compounds(OpNum::Close).len(), 1);
    let reader = cluster.mount();
    assert!(content(&reader.open(b"/f", &OpenOptions::read()).unwrap(), LEN) == bytes);
    // A server that has restarted refuses this report. It takes one by another layout, and the CLOSE.
    let file = new_file(&mount, "/g");
    file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
    cluster.restart_server();
    file.close().unwrap();
    let last = tamper.compounds(OpNum::Close).pop();
    assert_eq!(last.unwrap(), [OpNum::Sequence, OpNum::Putfh, OpNum::Close]);
    let other = cluster.mount();
    assert!(content(&other.open(b"/g", &OpenOptions::read()).unwrap(), LEN) == bytes);
}

/// A server whose first answer to LAYOUTCOMMIT is lost on its way.
#[derive(Default)]
struct Lost(AtomicBool);

impl Lies for Lost {
    fn loses(&self, ops: &[OpNum]) -> bool {
        ops.contains(&OpNum::Layoutcommit) && !self.0.swap(true, Ordering::SeqCst)
    }
}

#[test]
fn a_last_close_whose_answer_is_lost_is_carried_out_once() {
    let cluster = Cluster::new();
    let tamper = Tamper::new(cluster.address(), Lost::default());
    let mount = mount(tamper.address, "", true);
    let file = new_file(&mount, "/f");
    let bytes = pattern(LEN, 5);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    file.close().unwrap();
    // The second answer is the first one, from the replay cache: the layout is gone since.
    let together = [OpNum::Sequence, OpNum::Putfh, OpNum::Layoutcommit, OpNum::Close];
    assert_eq!(tamper.compounds(OpNum::Layoutcommit), [together, together]);
    assert_eq!(tamper.compounds(OpNum::Close).len(), 2);
    let other = cluster.mount().open(b"/f", &OpenOptions::read()).unwrap();
    assert!(content(&other, LEN) == bytes);
}
