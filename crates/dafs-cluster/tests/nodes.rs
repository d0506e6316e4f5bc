//! A metadata server's node and a data server, over loopback.

mod common;

use common::{Answering, COUNTERS, Cluster, STORE, settled};
use dafs_cluster::{ClusterSecret, DataNode, RemoteNode};
use dafs_mem::{VolatileSlice, cached_pages};
use dafs_service::{
    Flavour, ForeignUse, Identity, NfsCaller, ServiceError, StateId, StateRef, TransportSecurity,
};
use dafs_store::node::{ComponentHandle, ComponentId, DIGEST_BYTES_MAX, Elsewhere, Node};
use dafs_store::{Advised, CacheAdvice, FsId, Stability, StoreError};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

const ONE: ComponentId = ComponentId([1; 16]);

fn write(node: &dyn Node, offset: u64, data: &[u8]) -> dafs_store::Result<u64> {
    let mut data = data.to_vec();
    let wanted = data.len();
    let view = VolatileSlice::from_mut(&mut data);
    let written = node.write(&ONE, &[view], offset, Stability::Unstable)?;
    assert_eq!(written.count, wanted);
    Ok(written.verifier)
}

fn read(node: &dyn Node, offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0xff; len];
    let (first, second) = data.split_at_mut(len / 3);
    let views = [VolatileSlice::from_mut(first), VolatileSlice::from_mut(second)];
    let count = node.read(&ONE, &views, offset).expect("read");
    data.truncate(count);
    data
}

/// Ends a data server, and waits until the metadata server has noticed: until then its calls are
/// lost.
fn end(data: DataNode, node: &RemoteNode) {
    drop(data);
    settled(|| !node.status().connected);
}

#[test]
fn a_node_far_away_does_what_one_here_does() {
    let (cluster, _data, node) = Cluster::joined();
    assert_eq!(node.addresses(), cluster.addresses);
    let rdma: Vec<SocketAddr> = vec!["192.0.2.1:20049".parse().expect("an address")];
    assert_eq!(node.rdma_addresses(), rdma);
    // Longer than one message.
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    let verifier = write(&node, 5, &content).expect("written");
    assert_eq!(node.commit(&ONE), Ok(verifier));
    assert_eq!(node.size(&ONE), Ok(3_000_005));
    assert_eq!(read(&node, 5, 3_000_000), content);
    assert_eq!(read(&node, 5 + 2_999_990, 100), content[2_999_990..]);
    node.truncate(&ONE, 10).expect("cut");
    assert_eq!(node.size(&ONE), Ok(10));
    assert!(node.space().expect("space").total > 0);
    node.remove(&ONE).expect("removed");
    assert_eq!(node.size(&ONE), Ok(0));
    node.drop_grants(&ONE).expect("forgotten");
    assert_eq!(write(&node, u64::MAX, b"x"), Err(StoreError::FileTooBig));
}

/// All but one find a question under way, whose answer is the first.
#[test]
fn all_that_ask_for_the_space_at_once_get_it() {
    const AT_ONCE: usize = 8;
    let (_cluster, _data, node) = Cluster::joined();
    let start = Barrier::new(AT_ONCE);
    let ask = || {
        start.wait();
        node.space().map(|space| space.total > 0)
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(ask)).collect();
        for asked in asked {
            assert_eq!(asked.join().expect("an answer"), Ok(true));
        }
    });
}

#[test]
fn advice_reaches_the_machine_of_a_node() {
    let (cluster, _data, node) = Cluster::joined();
    let drops = |advice| node.advise(&ONE, 0, 0, advice);
    assert_eq!(drops(CacheAdvice::DontNeed), Ok(Advised::Ignored), "no component yet");
    write(&node, 0, &[7; 100_000]).expect("written");
    for advice in [CacheAdvice::Normal, CacheAdvice::Random, CacheAdvice::Sequential] {
        assert_eq!(drops(advice), Ok(Advised::Ignored));
    }
    let path = cluster.directory().join("01").join(ONE.to_string());
    let local = std::fs::File::open(path).expect("the component");
    let cached = || cached_pages(local.as_fd(), 0..1 << 40).ok();
    assert_eq!(drops(CacheAdvice::DontNeed), Ok(Advised::Followed));
    node.commit(&ONE).expect("stable");
    // Nothing leaves a file system in memory, and an old kernel does not tell.
    let leaves = cached() == Some(0);
    assert!(leaves || cached().is_none() || in_memory(&local), "{:?}", cached());
    for advice in [CacheAdvice::WillNeed, CacheAdvice::Keep, CacheAdvice::LeaveFirst] {
        assert_eq!(drops(advice), Ok(Advised::Followed), "{advice:?}");
    }
    if leaves {
        settled(|| cached().is_some_and(|pages| pages > 0));
    }
    assert_eq!(node.advise(&ONE, u64::MAX, 1, CacheAdvice::Keep), Err(StoreError::Invalid));
    assert_eq!(read(&node, 0, 100_000), [7; 100_000]);
}

/// True for a file of a file system that has no other place for content.
fn in_memory(file: &std::fs::File) -> bool {
    /// `TMPFS_MAGIC`.
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == TMPFS)
}

#[test]
fn a_data_server_that_comes_again_has_the_data_and_another_verifier() {
    let (cluster, data, node) = Cluster::joined();
    let (verifier, run) = (write(&node, 0, b"content").expect("written"), node.run());
    let space = node.space().expect("space");
    end(data, &node);
    assert_eq!(write(&node, 0, b"no").err(), Some(StoreError::Busy));
    assert_eq!(node.space().expect("the last known").total, space.total);
    let _data = cluster.data();
    settled(|| node.status().connected);
    assert_eq!(read(&node, 0, 99), b"content");
    assert_ne!(node.commit(&ONE), Ok(verifier));
    assert_ne!(node.run(), run);
}

#[test]
fn a_data_server_changes_its_secret_while_it_is_connected() {
    let (cluster, data, node) = Cluster::joined();
    let verifier = write(&node, 0, b"content").expect("written");
    let (old, new, one) = ([1; 32], [9; 32], ClusterSecret::from_bytes);
    for taken in [one(old).accepting(new), one(new).accepting(old), one(new)] {
        assert!(data.follow_secret(&taken) && !data.follow_secret(&taken));
        assert!(node.status().connected);
        assert_eq!(node.commit(&ONE), Ok(verifier));
    }
    drop(node);
    // A metadata server that knows the new one alone.
    let node = cluster.stranger(&data);
    settled(|| node.status().connected);
    assert_eq!(read(&node, 0, 99), b"content");
}

#[test]
fn a_node_tells_what_clients_have_done_there() {
    let (_cluster, data, node) = Cluster::joined();
    assert_eq!(node.counters(), COUNTERS);
    end(data, &node);
    assert_eq!(node.counters(), COUNTERS, "the last known");
}

#[test]
fn a_peer_with_another_secret_or_for_another_node_is_refused() {
    let cluster = Cluster::new();
    let data = cluster.data();
    let stranger = cluster.stranger(&data);
    settled(|| stranger.status().trouble.contains("another cluster secret"));
    assert!(!stranger.status().connected);
    assert_eq!(std::fs::read_dir(cluster.directory()).expect("the directory").count(), 0);
    assert!(!cluster.memory(1).exists());
    drop(stranger);
    let node = cluster.node(&data);
    settled(|| node.status().connected);
    let other = cluster.node_numbered(&data, 2);
    settled(|| other.status().trouble.contains("another node"));
    assert_eq!(write(&other, 0, b"no").err(), Some(StoreError::Busy));
    // It may have served clients in an earlier run.
    assert!(other.addresses().is_empty() && other.serves_clients());
}

#[test]
fn a_directory_that_came_back_empty_or_as_another_is_refused() {
    let (cluster, data, node) = Cluster::joined();
    end(data, &node);
    std::fs::rename(cluster.directory(), cluster.directory().with_extension("kept"))
        .expect("moved");
    std::fs::create_dir(cluster.directory()).expect("an empty one");
    let data = cluster.data();
    settled(|| node.status().trouble.contains("is empty"));
    drop(data);
    // As another metadata server of the same name would make it.
    dafs_store::node::DirectoryNode::make(&cluster.directory(), &STORE, 1).expect("marked");
    let data = cluster.data();
    settled(|| node.status().trouble.contains("is it a copy"));
    drop(data);
    std::fs::remove_dir_all(cluster.directory()).expect("removed");
    std::fs::rename(cluster.directory().with_extension("kept"), cluster.directory()).expect("back");
    let _data = cluster.data();
    settled(|| node.status().connected);
}

#[test]
fn an_empty_directory_takes_the_place_of_one_that_was_given_up_and_no_other_one_does() {
    let (cluster, data, node) = Cluster::joined();
    write(&node, 0, b"content").expect("written");
    end(data, &node);
    let kept = cluster.directory().with_extension("kept");
    std::fs::rename(cluster.directory(), &kept).expect("moved");
    std::fs::create_dir(cluster.directory()).expect("an empty one");
    let data = cluster.data();
    settled(|| node.status().trouble.contains("is empty"));
    node.give_up_directory().expect("given up");
    node.give_up_directory().expect("it is already");
    settled(|| node.status().connected);
    assert_eq!(node.size(&ONE), Ok(0));
    write(&node, 0, b"other").expect("written");
    end(data, &node);
    // The old one comes too late.
    std::fs::remove_dir_all(cluster.directory()).expect("removed");
    std::fs::rename(kept, cluster.directory()).expect("back");
    let _data = cluster.data();
    settled(|| node.status().trouble.contains("is it a copy"));
}

/// Copies the directory of files of a data server that has ended.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[test]
fn a_directory_that_went_back_in_time_is_refused_and_the_newest_one_is_not() {
    let (cluster, data, node) = Cluster::joined();
    let (directory, kept) = (cluster.directory(), cluster.directory().with_extension("kept"));
    write(&node, 0, b"old").expect("written");
    end(data, &node);
    let snapshot = directory.with_extension("snapshot");
    copy(&directory, &snapshot);
    let data = cluster.data();
    settled(|| node.status().connected);
    write(&node, 0, b"new").expect("written");
    end(data, &node);
    std::fs::rename(&directory, &kept).expect("moved");
    std::fs::rename(&snapshot, &directory).expect("restored");
    let data = cluster.data();
    settled(|| node.status().trouble.contains("gone back in time"));
    assert!(!node.status().connected && !data.is_connected());
    assert_eq!(write(&node, 0, b"no").err(), Some(StoreError::Busy));
    // Nor by a restarted metadata server.
    drop(node);
    let node = cluster.node(&data);
    settled(|| node.status().trouble.contains("gone back in time"));
    drop(data);
    std::fs::rename(&directory, &snapshot).expect("moved");
    std::fs::rename(&kept, &directory).expect("back");
    let data = cluster.data();
    settled(|| node.status().connected);
    assert_eq!(read(&node, 0, 99), b"new");
    // A directory after one that was given up may be the older one: the administrator who wants its
    // files knows that.
    end(data, &node);
    std::fs::rename(&directory, &kept).expect("moved");
    std::fs::rename(&snapshot, &directory).expect("restored");
    let data = cluster.data();
    settled(|| node.status().trouble.contains("gone back in time"));
    node.give_up_directory().expect("given up");
    settled(|| node.status().connected);
    assert_eq!(read(&node, 0, 99), b"old");
    end(data, &node);
    std::fs::rename(&directory, &snapshot).expect("moved");
    std::fs::rename(&kept, &directory).expect("back");
    let _data = cluster.data();
    settled(|| node.status().trouble.contains("is it a copy"));
}

#[test]
fn digests_show_what_a_component_has() {
    let (_cluster, _data, node) = Cluster::joined();
    let none = node.digest(&ONE, 0, 100).expect("a digest of what is missing");
    assert_eq!(none.count, 0);
    write(&node, 0, &[7; 50]).expect("written");
    let half = node.digest(&ONE, 0, 100).expect("a digest");
    assert_eq!(half.count, 50);
    assert_ne!(half.hash, none.hash);
    // A component that ends early and one with zeros look alike to readers.
    write(&node, 50, &[0; 50]).expect("written");
    let whole = node.digest(&ONE, 0, 100).expect("a digest");
    assert_eq!((whole.count, whole.hash), (100, half.hash));
    write(&node, 99, &[1]).expect("written");
    assert_ne!(node.digest(&ONE, 0, 100).expect("a digest").hash, whole.hash);
    let most = node.digest(&ONE, 0, 2 * DIGEST_BYTES_MAX).expect("a digest");
    assert_eq!(node.digest(&ONE, 0, DIGEST_BYTES_MAX), Ok(most), "no longer than allowed");
}

#[test]
fn a_directory_without_files_may_go_back_in_time() {
    let cluster = Cluster::new();
    let mark = cluster.directory().join("incarnation");
    let data = cluster.data();
    let join = || {
        let node = cluster.node_beside(&data);
        settled(|| node.status().connected);
    };
    join();
    let before = std::fs::read(&mark).expect("a mark");
    join();
    std::fs::write(&mark, before).expect("restored");
    join();
}

#[test]
fn a_metadata_server_from_a_backup_or_of_an_earlier_version_keeps_no_node_out() {
    let cluster = Cluster::new();
    let data = cluster.data();
    let join = || {
        let node = cluster.node(&data);
        settled(|| node.status().connected);
    };
    join();
    let backup = std::fs::read_to_string(cluster.memory(1)).expect("a memory");
    (0..3).for_each(|_| join());
    let newest = std::fs::read_to_string(cluster.memory(1)).expect("a memory");
    assert_ne!(backup, newest);
    std::fs::write(cluster.memory(1), &backup).expect("restored");
    join();
    assert!(std::fs::read_to_string(cluster.memory(1)).expect("a memory") > newest);
    // Neither side has counted.
    let first = backup.lines().next().expect("a line");
    std::fs::write(cluster.memory(1), first).expect("written");
    std::fs::write(cluster.directory().join("incarnation"), first).expect("written");
    join();
    assert_eq!(std::fs::read_to_string(cluster.memory(1)).expect("a memory"), backup);
}

#[test]
fn silent_unauthenticated_peers_keep_no_metadata_server_out() {
    let cluster = Cluster::new();
    let data = cluster.data();
    // Some stop in the first message of TLS.
    let starts = [&[][..], &[0x16], &[0x16, 3, 1, 0x40, 0], &[0x16, 3, 1, 1, 0, 1, 0]];
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(data.address()).expect("a connection");
        stream.write_all(starts[number % starts.len()]).expect("sent");
        stream
    };
    let mut strangers: Vec<_> = (0..40).map(connect).collect();
    // The first have made room for the last.
    strangers[0].set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    assert_eq!(strangers[0].read(&mut [0]).expect("the end of the connection"), 0);
    let node = cluster.node(&data);
    settled(|| node.status().connected);
    assert_eq!(strangers.len(), 40, "they are there still");
}

#[test]
fn without_a_door_for_clients_there_is_no_data_server() {
    let cluster = Cluster::new();
    let closed = |_| Err(io::Error::other("the door is jammed"));
    let data = cluster.data_with(closed).expect("nobody's directory yet");
    let node = cluster.node(&data);
    settled(|| node.status().trouble.contains("let clients in"));
    assert!(!node.status().connected);
    assert!(node.addresses().is_empty(), "no client is sent there");
    drop((node, data));
    // The directory is known by now, so the start itself fails.
    let failed = cluster.data_with(closed).expect_err("no door");
    assert!(failed.to_string().contains("the door is jammed"), "{failed}");
    let data = cluster.data();
    let node = cluster.node(&data);
    settled(|| node.status().connected);
}

#[test]
fn a_door_that_opens_only_later_lets_the_metadata_server_in_then() {
    let cluster = Cluster::new();
    let mut tries = 0;
    let closed_at_first = move |_| {
        tries += 1;
        match tries {
            1 | 2 => Err(io::Error::other("what is next to it is not there yet")),
            _ => Ok(()),
        }
    };
    let data = cluster.data_with(closed_at_first).expect("nobody's directory yet");
    let node = cluster.node(&data);
    settled(|| node.status().trouble.contains("let clients in"));
    settled(|| node.status().connected);
    assert_eq!(write(&node, 0, b"it works").err(), None);
}

fn handle() -> ([u8; 64], ComponentHandle) {
    let handle = ComponentHandle {
        component: ONE,
        node: 1,
        place: 0,
        count: 2,
        first: 0,
        unit_bytes: NonZeroU32::new(4096).expect("a unit"),
    };
    let mut bytes = [0; 64];
    bytes[16..].copy_from_slice(&handle.seal(&FsId([0; 16]), &[0; 16]).0);
    (bytes, handle)
}

#[test]
fn a_yes_is_asked_for_once_and_until_it_is_taken_back() {
    let cluster = Cluster::new();
    let data = cluster.data();
    let node = cluster.node(&data);
    let metadata = Answering::new();
    node.answer_by(metadata.clone());
    settled(|| data.is_connected() && node.status().connected);
    let identity = Identity { mechanism: "sys", principal: vec![0; 4] };
    let judge = data.judge();
    let address = |text: &str| text.parse().expect("an address");
    let at_first =
        NfsCaller { flavour: Flavour::Sys, address: address("192.0.2.1"), privileged: true };
    let caller = Cell::new(at_first);
    let check = |owner: &[u8]| {
        let state = StateRef { id: StateId(7 << 32), seqid: 1 };
        let component = &handle().0;
        let caller = Some(caller.get());
        let (identity, now_ns) = (&identity, 0);
        let security = TransportSecurity::None;
        let write = true;
        let wanted =
            ForeignUse { owner, identity, component, state, write, caller, security, now_ns };
        judge.check(&ONE, &wanted)
    };
    assert_eq!((check(b"one"), check(b"one")), (Ok(None), Ok(None)));
    assert_eq!(metadata.questions(), 1);
    assert_eq!(check(b"two"), Ok(None));
    assert_eq!(metadata.questions(), 2);
    assert_eq!(metadata.caller(), Some(at_first));
    // A yes to a call of one flavour, from one address or port is none to another.
    for (asked, other) in [
        (3, NfsCaller { flavour: Flavour::Krb5p, ..at_first }),
        (4, NfsCaller { address: address("2001:db8::1"), ..at_first }),
        (5, NfsCaller { privileged: false, ..at_first }),
    ] {
        caller.set(other);
        assert_eq!((check(b"two"), check(b"two")), (Ok(None), Ok(None)));
        assert_eq!((metadata.questions(), metadata.caller()), (asked, Some(other)));
    }
    caller.set(at_first);
    metadata.refuse(Some(ServiceError::BadLayout));
    assert_eq!(check(b"one"), Ok(None), "it is believed for a while");
    node.drop_grants(&ONE).expect("forgotten");
    assert_eq!(check(b"one"), Err(ServiceError::BadLayout));
    assert_eq!(check(b"one"), Err(ServiceError::BadLayout));
    assert_eq!(metadata.questions(), 7, "a no is not kept");
    metadata.refuse(None);
    assert_eq!(check(b"one"), Ok(None));
    // A session that is old enough for one question is old enough for the next.
    metadata.allow_younger(Duration::from_secs(30));
    assert_eq!(check(b"one"), Ok(None));
    node.drop_grants(&ONE).expect("forgotten");
    let ages = [check(b"one"), check(b"one")].map(|age| age.expect("a yes").expect("an age"));
    assert!(Duration::from_secs(30) <= ages[0] && ages[0] <= ages[1], "{ages:?}");
    assert_eq!(metadata.questions(), 9);
    assert_eq!(judge.size(&ONE), Ok(77));
    // Bytes that are not here come from the metadata server.
    let mut bytes = vec![0; 8];
    let view = [VolatileSlice::from_mut(&mut bytes)];
    assert_eq!(Elsewhere::read(&judge, &handle().1, &view, 4096), Ok(8));
    assert_eq!(bytes, b"elsewher");
    let view = [VolatileSlice::from_mut(&mut bytes)];
    let written = Elsewhere::write(&judge, &handle().1, &view, 4096, Stability::Unstable);
    assert_eq!((written, metadata.written()), (Ok(8), b"elsewher".to_vec()));
}

#[test]
fn clients_wait_without_a_metadata_server_and_grants_end_with_the_next() {
    let cluster = Cluster::new();
    let data = cluster.data();
    let identity = Identity { mechanism: "none", principal: Vec::new() };
    let judge = data.judge();
    let check = || {
        let state = StateRef { id: StateId(7 << 32), seqid: 1 };
        let component = &handle().0;
        judge.check(
            &ONE,
            &ForeignUse {
                owner: b"one",
                identity: &identity,
                component,
                state,
                write: false,
                caller: None,
                security: TransportSecurity::None,
                now_ns: 0,
            },
        )
    };
    assert_eq!(check(), Err(ServiceError::Delay));
    let node = cluster.node(&data);
    let metadata = Answering::new();
    node.answer_by(metadata.clone());
    settled(|| data.is_connected() && check().is_ok());
    let asked = metadata.questions();
    drop(node);
    metadata.refuse(Some(ServiceError::Expired));
    let node = cluster.node(&data);
    node.answer_by(metadata.clone());
    settled(|| node.status().connected && data.is_connected());
    assert_eq!(check(), Err(ServiceError::Expired));
    assert_eq!(metadata.questions(), asked + 1);
    assert!(judge.size(&ONE).is_ok());
}

#[test]
fn grants_of_a_lost_data_server_expire() {
    let (_cluster, data, node) = Cluster::joined();
    node.drop_grants(&ONE).expect("forgotten");
    end(data, &node);
    assert_eq!(node.drop_grants(&ONE), Err(StoreError::Busy), "it may believe something");
    settled(|| node.drop_grants(&ONE).is_ok());
}
