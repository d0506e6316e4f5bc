//! Tests the verbs provider against the contract of the trait on an RDMA device of this machine,
//! with both sides in this process. It is a program and not a test, because few machines have a
//! device. The script `lab/tests/verbs-contract.sh` runs it in a guest that has one.

// The promises are written for the test harness.
#![allow(clippy::unwrap_used)]

#[macro_use]
#[path = "../tests/contract/mod.rs"]
mod contract;

use contract::{Side, World, data, ending, faults, grant, invalidate, setup};
use dafs_dat::verbs::{DeviceKind, VerbsAdapter, VerbsConfig};
use dafs_dat::{Access, Address, Instant, WorkStatus};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

const USAGE: &str = "\
usage: verbs_contract [--changed] [--registered] ADDRESS [WORD...]
  --changed     change the credentials of the thread once the device is open, as a server does that
                acts for its callers
  --registered  grant memory by registrations, also where the device has memory windows
  ADDRESS       an address of the RDMA device
  WORD          run only the promises whose name has one of these in it";

type Promise = (&'static str, fn(&mut World));

macro_rules! promises {
    ($($module:ident :: { $($name:ident),* $(,)? })*) => {
        &[$($((stringify!($name), $module::$name as fn(&mut World)),)*)*]
    };
}

/// All promises but those about keys that the peer invalidates. Devices support that for memory
/// which the kernel registers for itself. So this provider invalidates keys of others but offers
/// none.
const PROMISES: &[Promise] = common_promises! { promises!, [],
    ending::{ an_abort_ends_both_sides }
    grant::{
        a_grant_is_read_by_its_peer_alone, a_grant_is_not_written,
        a_revoked_grant_ends_its_connection_alone, a_grant_ends_under_reads,
        a_grant_shows_what_its_owner_writes,
    }
    invalidate::{ a_bad_post_invalidates_nothing }
    own::{
        sixteen_segments_are_gathered, a_key_dies_while_its_memory_is_sent,
        a_read_that_has_completed_has_its_data, more_work_than_the_device_holds,
        many_connections, a_sleeper_is_woken,
        a_right_to_write_that_is_missing, a_key_of_ours_cannot_be_invalidated,
        a_key_of_ours_is_invalidated, a_child_leaves_the_parents_alone,
        locked_memory_is_limited,
    }
};

/// Linux siw (6.12) answers a read of any registered memory of the domain, whatever rights the
/// registration has.
const NOT_KEPT_BY_SIW: &[&str] =
    &["a_right_that_is_missing", "a_key_of_ours_cannot_be_invalidated"];

/// The peer of an iWARP device is granted nothing.
const NOT_KEPT_BY_IWARP: &[&str] = &[
    "a_grant_is_read_by_its_peer_alone",
    "a_grant_is_not_written",
    "a_revoked_grant_ends_its_connection_alone",
    "a_grant_ends_under_reads",
    "a_grant_shows_what_its_owner_writes",
];

/// siw invalidates any key but does not report it; there the test can see that the right key is
/// sent.
const KEPT_BY_SIW_ALONE: &[&str] = &["a_key_of_ours_is_invalidated"];

mod own {
    //! Promises of this provider alone.

    use super::contract::{Link, pattern};
    use super::*;
    use dafs_dat::sim::{SimFaults, SimNetwork};
    use dafs_dat::{GATHER_SEGMENTS_MAX, PostError, RegisterError};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// More segments than some devices gather: the provider copies a send and splits a write.
    pub(crate) fn sixteen_segments_are_gathered(world: &mut World) {
        let link = world.connect();
        let to = world.server.memory(64 * GATHER_SEGMENTS_MAX, Access::all());
        let from = world.client.memory(8192, Access::empty());
        from.fill(1);
        let segments: Vec<_> =
            (0..GATHER_SEGMENTS_MAX).map(|i| from.region.local(i * 500, 1 + 3 * i)).collect();
        let all = pattern(1, 8192);
        let want: Vec<u8> =
            segments.iter().flat_map(|s| &all[s.offset..s.offset + s.len]).copied().collect();
        let len = want.len();
        for round in 0..3 {
            let inbox = to.region.local(0, len);
            world.server.adapter.post_receive(link.server, round, inbox).unwrap();
            world.client.adapter.post_send(link.client, 10 + round, &segments).unwrap();
            assert_eq!(world.server_done(round), WorkStatus::Ok(len as u32));
            assert_eq!(world.client_done(10 + round), WorkStatus::Ok(len as u32));
            assert!(to.read(0, len) == want);
            to.buffer.view().fill(0);
        }
        let remote = to.remote(3, len as u32);
        world.client.adapter.rdma_write(link.client, 20, &segments, remote).unwrap();
        assert_eq!(world.client_done(20), WorkStatus::Ok(len as u32));
        world.greet(link);
        assert!(to.read(3, len) == want);
    }

    /// A region with rights for peers is deregistered while its owner's work is in progress.
    pub(crate) fn a_key_dies_while_its_memory_is_sent(world: &mut World) {
        const SIZE: usize = 1 << 20;
        let link = world.connect();
        world.greet(link);
        let memory = world.server.memory(SIZE, Access::all());
        memory.fill(2);
        let to = world.client.memory(SIZE, Access::LOCAL_WRITE);
        world.client.adapter.post_receive(link.client, 1, to.region.local(0, SIZE)).unwrap();
        let segments = [memory.region.local(0, SIZE)];
        world.server.adapter.post_send(link.server, 2, &segments).unwrap();
        world.server.adapter.flush();
        let (remote, kept) = (memory.remote(0, 64), memory.buffer.clone());
        world.server.adapter.deregister(memory.region.id);
        drop(memory);
        assert_eq!(world.client_done(1), WorkStatus::Ok(SIZE as u32));
        assert!(to.read(0, SIZE) == pattern(2, SIZE));
        assert_eq!(world.server_done(2), WorkStatus::Ok(SIZE as u32));
        let sink = to.region.local(0, 64);
        world.client.adapter.rdma_read(link.client, 3, sink, remote).unwrap();
        assert_eq!(world.client_done(3), WorkStatus::Flushed);
        drop(kept);
    }

    /// A send may complete before an earlier read, but a read that has completed has its data. The
    /// read is long, so that its response takes more than one turn of the kernel's thread.
    pub(crate) fn a_read_that_has_completed_has_its_data(world: &mut World) {
        const SIZE: usize = 32 << 20;
        const ROUNDS: u64 = 8;
        let link = world.connect();
        world.greet(link);
        let source = world.server.memory(SIZE, Access::REMOTE_READ);
        let sink = world.client.memory(SIZE, Access::LOCAL_WRITE);
        let inbox = world.server.memory(64, Access::LOCAL_WRITE);
        let message = world.client.memory(64, Access::empty());
        for round in 0..ROUNDS {
            source.fill(round);
            world.server.adapter.post_receive(link.server, 10, inbox.region.local(0, 64)).unwrap();
            let (segment, remote) = (sink.region.local(0, SIZE), source.remote(0, SIZE as u32));
            world.client.adapter.rdma_read(link.client, 1, segment, remote).unwrap();
            let message = [message.region.local(0, 64)];
            world.client.adapter.post_send(link.client, 2, &message).unwrap();
            assert_eq!(world.client_done(1), WorkStatus::Ok(SIZE as u32));
            assert!(sink.read(0, SIZE) == pattern(round, SIZE), "round {round}");
            assert_eq!(world.client_done(2), WorkStatus::Ok(64));
            assert_eq!(world.server_done(10), WorkStatus::Ok(64));
        }
    }

    pub(crate) fn more_work_than_the_device_holds(world: &mut World) {
        const COUNT: usize = 1000;
        let link = world.connect();
        let target = world.server.memory(COUNT, Access::REMOTE_WRITE);
        let from = world.client.memory(COUNT, Access::empty());
        from.fill(3);
        for i in 0..COUNT {
            let (segment, remote) = (from.region.local(i, 1), target.remote(i, 1));
            world.client.adapter.rdma_write(link.client, i as u64, &[segment], remote).unwrap();
        }
        for i in 0..COUNT as u64 {
            assert_eq!(world.client_done(i), WorkStatus::Ok(1));
        }
        world.greet(link);
        assert!(target.read(0, COUNT) == pattern(3, COUNT));
    }

    /// Connections fill more than one completion queue, and the provider frees all of it.
    pub(crate) fn many_connections(world: &mut World) {
        let links: Vec<Link> = (0..40).map(|_| world.connect()).collect();
        for link in &links {
            world.greet(*link);
        }
        for link in &links {
            world.client.adapter.disconnect(link.client);
        }
        for link in links {
            world.client_gone(link.client);
            world.server_gone(link.server);
        }
        let link = world.connect();
        world.greet(link);
    }

    pub(crate) fn a_right_to_write_that_is_missing(world: &mut World) {
        let link = world.connect();
        let memory = world.server.memory(4096, Access::LOCAL_WRITE | Access::REMOTE_READ);
        memory.fill(4);
        let from = world.client.memory(64, Access::empty());
        faults::breaks(world, link, |world| {
            let (segment, remote) = (from.region.local(0, 64), memory.remote(0, 64));
            world.client.adapter.rdma_write(link.client, 1, &[segment], remote).unwrap();
        });
        assert!(memory.read(0, 4096) == pattern(4, 4096));
    }

    pub(crate) fn a_key_of_ours_cannot_be_invalidated(world: &mut World) {
        let link = world.connect();
        let memory = world.server.memory(4096, Access::REMOTE_READ | Access::REMOTE_WRITE);
        memory.fill(5);
        let from = world.client.memory(64, Access::empty());
        let inbox = world.server.memory(64, Access::LOCAL_WRITE);
        world.server.adapter.post_receive(link.server, 1, inbox.region.local(0, 64)).unwrap();
        faults::breaks(world, link, |world| {
            let (segments, key) = ([from.region.local(0, 64)], memory.region.key);
            world.client.adapter.post_send_invalidate(link.client, 2, &segments, key).unwrap();
        });
        assert!(memory.read(0, 4096) == pattern(5, 4096));
        // Other connections are not affected.
        let link = world.connect();
        world.greet(link);
    }

    pub(crate) fn a_key_of_ours_is_invalidated(world: &mut World) {
        let link = world.connect();
        let memory = world.server.memory(4096, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let other = world.server.memory(4096, Access::REMOTE_READ | Access::REMOTE_WRITE);
        memory.fill(5);
        let from = world.client.memory(64, Access::LOCAL_WRITE);
        let inbox = world.server.memory(64, Access::LOCAL_WRITE);
        let segment = from.region.local(0, 64);
        world.server.adapter.post_receive(link.server, 1, inbox.region.local(0, 64)).unwrap();
        let key = memory.region.key;
        world.client.adapter.post_send_invalidate(link.client, 2, &[segment], key).unwrap();
        assert_eq!(world.server_done(1), WorkStatus::Ok(64));
        assert_eq!(world.client_done(2), WorkStatus::Ok(64));
        // Only that key was invalidated.
        let remote = other.remote(0, 64);
        world.client.adapter.rdma_read(link.client, 3, segment, remote).unwrap();
        assert_eq!(world.client_done(3), WorkStatus::Ok(64));
        faults::is_out_of_reach(world, &memory, memory.remote(0, 64));
        world.server.adapter.deregister(memory.region.id);
    }

    /// A fork shares the device mappings; the child must neither use nor end them.
    pub(crate) fn a_child_leaves_the_parents_alone(world: &mut World) {
        let link = world.connect();
        let memory = world.client.memory(64, Access::all());
        let segment = memory.region.local(0, 64);
        // SAFETY: the other thread of this process waits for work and holds no lock, so the child
        // may run any code.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let client = &mut world.client.adapter;
                let refused = Err(PostError::NotConnected);
                assert_eq!(client.post_send(link.client, 1, &[segment]), refused);
                assert_eq!(client.post_receive(link.client, 1, segment), refused);
                let again = client.register(
                    world.client.domain,
                    memory.buffer.clone(),
                    Access::LOCAL_WRITE,
                );
                assert!(again.unwrap_err().to_string().contains("forked"));
                assert!(client.arm().is_err());
                client.abort(link.client);
                client.disconnect(link.client);
                client.deregister(memory.region.id);
                assert!(VerbsAdapter::open(VerbsConfig::default()).is_err());
                let mut events = Vec::new();
                assert_eq!(client.poll(Instant::now(), &mut events), 0);
                let other = SimNetwork::new(1, SimFaults::none());
                let other = |host| Side::new(Box::new(other.adapter(host)));
                drop(std::mem::replace(&mut world.client, other(1)));
                drop(std::mem::replace(&mut world.server, other(2)));
            }));
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(outcome.is_err())) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child failed");
        world.greet(link);
        let far = world.server.memory(64, Access::LOCAL_WRITE);
        far.fill(1);
        let remote = memory.remote(0, 64);
        let source = [far.region.local(0, 64)];
        world.server.adapter.rdma_write(link.server, 2, &source, remote).unwrap();
        assert_eq!(world.server_done(2), WorkStatus::Ok(64));
    }

    /// Runs last, because it drops a capability of this process for good.
    pub(crate) fn locked_memory_is_limited(world: &mut World) {
        let page = dafs_mem::PAGE_BYTES;
        let low = rustix::process::Rlimit {
            current: Some(16 * page as u64),
            maximum: Some(16 * page as u64),
        };
        rustix::process::setrlimit(rustix::process::Resource::Memlock, low).unwrap();
        let domain = world.client.domain;
        let register = |world: &mut World, pages: usize| {
            let buffer = world.client.adapter.allocate(pages * page).unwrap();
            world.client.adapter.register(domain, buffer, Access::LOCAL_WRITE)
        };
        let large = register(world, 17).expect("CAP_IPC_LOCK lifts the limit");
        world.client.adapter.deregister(large.id);
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = register(world, 17).unwrap_err();
        assert!(matches!(error, RegisterError::LockedMemory { .. }), "{error}");
        let first = register(world, 9).unwrap();
        let error = register(world, 9).unwrap_err();
        assert!(matches!(error, RegisterError::LockedMemory { .. }), "{error}");
        // The provider deregisters cached memory to make room.
        world.client.adapter.deregister(first.id);
        register(world, 9).unwrap();
    }

    /// After `arm` the descriptor reports a message, and the end of a connection.
    pub(crate) fn a_sleeper_is_woken(world: &mut World) {
        fn sleep(world: &mut World) {
            for _ in 0..100 {
                if !world.server.adapter.arm().unwrap() {
                    return;
                }
                let descriptor = world.server.adapter.descriptor().unwrap();
                let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
                let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
                let woken = poll(&mut set, Some(&wait)).unwrap();
                if woken > 0 {
                    return;
                }
                // Some events depend on a timeout alone.
                assert!(world.server.adapter.next_timeout().is_some(), "never woken");
                world.poll();
            }
            panic!("never woken");
        }
        let link = world.connect();
        // The provider may delay a first message.
        world.greet(link);
        let to = world.server.memory(64, Access::LOCAL_WRITE);
        let from = world.client.memory(64, Access::empty());
        for round in 0..5 {
            let inbox = to.region.local(0, 64);
            world.server.adapter.post_receive(link.server, round, inbox).unwrap();
            assert!(world.server.adapter.arm().unwrap(), "nothing to do");
            let message = [from.region.local(0, 64)];
            world.client.adapter.post_send(link.client, round, &message).unwrap();
            world.client.adapter.flush();
            sleep(world);
            assert_eq!(world.server_done(round), WorkStatus::Ok(64));
            assert_eq!(world.client_done(round), WorkStatus::Ok(64));
        }
        world.client.adapter.abort(link.client);
        sleep(world);
        world.server_gone(link.server);
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let is_changed = words.next_if(|word| word == "--changed").is_some();
    let is_registered = words.next_if(|word| word == "--registered").is_some();
    let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let words: Vec<String> = words.collect();
    let open = || {
        let config = VerbsConfig { memory_windows: !is_registered, ..VerbsConfig::at(address) };
        VerbsAdapter::open(config).map_err(|error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        })
    };
    if is_changed {
        if let Err(status) = open() {
            return status;
        }
        // The kernel sees the same capabilities as new ones.
        let same = rustix::thread::capabilities(None)
            .and_then(|sets| rustix::thread::set_capabilities(None, sets));
        if let Err(error) = same {
            eprintln!("cannot change credentials: {error}");
            return ExitCode::FAILURE;
        }
    }
    let mut failed = 0;
    for (name, promise) in PROMISES {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let (client, server) = match (open(), open()) {
            (Ok(client), Ok(server)) => (client, server),
            (Err(status), _) | (_, Err(status)) => return status,
        };
        let (device, others) = match client.device().kind {
            DeviceKind::SoftIwarp => ("siw", NOT_KEPT_BY_SIW),
            _ => ("others", KEPT_BY_SIW_ALONE),
        };
        let is_iwarp = matches!(client.device().kind, DeviceKind::Iwarp | DeviceKind::SoftIwarp);
        if others.contains(name) || (is_iwarp && NOT_KEPT_BY_IWARP.contains(name)) {
            println!("not by {device}: {name}");
            continue;
        }
        let mut world = World {
            client: Side::new(Box::new(client)),
            server: Side::new(Box::new(server)),
            listen: Address::Verbs(SocketAddr::new(address, 0)),
            // Yields the CPU to the kernel, which emulates the device.
            clock: Box::new(|| {
                std::thread::yield_now();
                Instant::now()
            }),
            tells_whose_mistake: false,
        };
        let kept = catch_unwind(AssertUnwindSafe(|| promise(&mut world))).is_ok();
        drop(world);
        println!("{} {name}", if kept { "ok     " } else { "FAILED " });
        failed += usize::from(!kept);
    }
    if failed > 0 {
        println!("{failed} promises are not kept");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
