//! Attributes of files that the asking client writes at data servers. Linux takes the size of any
//! reply, and appends there, also before its LAYOUTCOMMIT.

use crate::common::*;
use crate::layouts::Cluster;
use crate::spread::Asked;
use dafs_service::{Caller, Client, EntryObject, Opened, Result, ServiceError, StateRef};
use dafs_store::{DirEntry, SetAttr, SetTime, TimeSpec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A client that has written to the file "f" at a data server.
struct Writing {
    cluster: Cluster,
    one: Arc<Client>,
    own: Opened,
    layout: StateRef,
}

impl Writing {
    fn begin() -> Self {
        let cluster = Cluster::new();
        let (one, own, layout) = cluster.writer();
        cluster.vouch("a", &own, own.state.reference(), true).unwrap();
        Self { cluster, one, own, layout }
    }

    /// Returns the size in a GETATTR.
    fn look(&self, caller: Caller<'_>) -> Result<u64> {
        let attr = self.cluster.service.delegations.attributes(caller, self.own.state.handle())?;
        Ok(attr.size)
    }

    fn look_patiently(&self) -> Result<u64> {
        self.look(self.cluster.patient(&self.one))
    }
}

/// Returns the sizes in a READDIR of the root.
fn list(cluster: &Cluster, caller: Caller<'_>) -> Result<Vec<Result<u64>>> {
    let mut sizes = Vec::new();
    let mut sink = |_: DirEntry<'_>, object: EntryObject| {
        sizes.push(object.map(|object| object.unwrap().1.size));
        true
    };
    cluster.service.readdir(caller, &cluster.root, 0, true, &mut sink)?;
    Ok(sizes)
}

#[test]
fn a_writer_learns_how_far_it_has_written_before_it_commits() {
    let cluster = Cluster::new();
    let (one, own, layout) = cluster.writer();
    let two = cluster.nfs("b");
    let writing = Writing { cluster, one, own, layout };
    let Writing { cluster, one, own, .. } = &writing;
    // As far as the server knows, it has not written.
    assert_eq!(writing.look(cluster.caller(one)), Ok(0));
    assert_eq!(list(cluster, cluster.caller(one)), Ok(vec![Ok(0)]));
    cluster.vouch("a", own, own.state.reference(), true).unwrap();
    cluster.store.take_asked();
    for written in [5, 7] {
        cluster.store.reach.store(written, Ordering::SeqCst);
        assert_eq!(writing.look(cluster.caller(one)), Err(ServiceError::WouldWait));
        assert_eq!(list(cluster, cluster.caller(one)), Err(ServiceError::WouldWait));
        assert_eq!(writing.look_patiently(), Ok(written));
        assert_eq!(list(cluster, cluster.patient(one)), Ok(vec![Ok(written)]));
        assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize; 2]);
    }
    // An old size would be worse than none.
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(writing.look_patiently(), Err(ServiceError::Delay));
    // Another client gets what is known.
    cluster.store.take_asked();
    assert_eq!(writing.look(cluster.caller(&two)), Ok(7));
    assert_eq!(list(cluster, cluster.caller(&two)), Ok(vec![Ok(7)]));
    assert!(cluster.store.take_asked().is_empty());
}

/// As tar does: it sets the time, and looks at the file before it is closed.
#[test]
fn a_time_that_a_writer_has_set_stays_when_it_asks_for_the_size() {
    let writing = Writing::begin();
    let Writing { cluster, one, own, .. } = &writing;
    let (service, handle) = (&cluster.service, own.state.handle());
    let old = TimeSpec { seconds: 1_000_000, nanoseconds: 5 };
    let change = SetAttr { mtime: Some(SetTime::To(old)), ..SetAttr::default() };
    let give_time = || service.setattr(cluster.patient(one), handle, StateRef::ANONYMOUS, &change);
    let mtime = || service.delegations.attributes(cluster.patient(one), handle).unwrap().mtime;
    cluster.store.touches.store(true, Ordering::SeqCst);
    give_time().unwrap();
    cluster.store.reach.store(5, Ordering::SeqCst);
    assert_eq!([mtime(), mtime()], [old; 2]);
    // Before it unlocks a file, and when others ask.
    service.layouts.extend_to_own(cluster.patient(one), handle).unwrap();
    assert_eq!(mtime(), old);
    // A later write counts.
    cluster.vouch("a", own, own.state.reference(), true).unwrap();
    assert_ne!(mtime(), old);
}

/// SEEK and COPY use a file's own size.
#[test]
fn a_file_reaches_as_far_as_its_writer_has_written_before_its_size_is_used() {
    let Writing { cluster, one, own, .. } = Writing::begin();
    let (service, handle) = (&cluster.service, own.state.handle());
    cluster.store.reach.store(5, Ordering::SeqCst);
    let extend = |caller| service.layouts.extend_to_own(caller, handle);
    assert_eq!(extend(cluster.caller(&one)), Err(ServiceError::WouldWait));
    assert_eq!(extend(cluster.patient(&one)), Ok(()));
    assert_eq!(service.getattr(handle).unwrap().size, 5);
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(extend(cluster.patient(&one)), Err(ServiceError::Delay));
}

/// A data server that hangs holds up a writer's GETATTR for a bounded time.
#[test]
fn a_writer_waits_for_its_size_for_a_bounded_time() {
    let writing = Writing::begin();
    let gate = writing.cluster.store.hold_next();
    assert_eq!(writing.look_patiently(), Err(ServiceError::Delay));
    // The search that hangs is the only one for this file.
    assert_eq!(writing.look_patiently(), Err(ServiceError::Delay));
    gate.wait();
    gate.wait();
    let began = Instant::now();
    while writing.look_patiently().is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

/// An entry without attributes does not hide the others.
#[test]
fn a_listing_waits_once_for_data_servers_that_are_away() {
    let Writing { cluster, one, .. } = Writing::begin();
    let other = cluster.open(&one, "g", BOTH).unwrap();
    cluster.get(&one, &other, true).unwrap();
    cluster.vouch("a", &other, other.state.reference(), true).unwrap();
    cluster.open(&one, "h", BOTH).unwrap();
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.store.take_asked();
    let sizes = list(&cluster, cluster.patient(&one)).unwrap();
    assert_eq!(sizes, [Err(ServiceError::Delay), Err(ServiceError::Delay), Ok(0)]);
    assert_eq!(cluster.store.take_asked(), [Asked::RecoverSize]);
}

/// Each answer takes 0.6 seconds. The client asks for the rest of the listing.
#[test]
fn a_listing_ends_early_when_data_servers_take_long() {
    let Writing { cluster, one, .. } = Writing::begin();
    for name in ["g", "h", "i", "j"] {
        let other = cluster.open(&one, name, BOTH).unwrap();
        cluster.get(&one, &other, true).unwrap();
        cluster.vouch("a", &other, other.state.reference(), true).unwrap();
    }
    cluster.store.reach.store(5, Ordering::SeqCst);
    cluster.store.call_milliseconds.store(600, Ordering::SeqCst);
    let sizes = list(&cluster, cluster.patient(&one)).unwrap();
    assert!(!sizes.is_empty());
    assert!(sizes.iter().filter(|size| size.is_ok()).count() <= 2, "{sizes:?}");
}

/// Linux returns layouts without a LAYOUTCOMMIT.
#[test]
fn a_writer_that_has_returned_its_layout_waits_for_its_size() {
    let writing = Writing::begin();
    let Writing { cluster, one, own, layout } = &writing;
    let two = cluster.nfs("b");
    cluster.store.reach.store(5, Ordering::SeqCst);
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.give_back(one, own, *layout);
    assert_eq!(writing.look_patiently(), Err(ServiceError::Delay));
    assert_eq!(writing.look(cluster.caller(&two)), Ok(0));
    cluster.store.away.store(false, Ordering::SeqCst);
    assert_eq!(writing.look(cluster.caller(one)), Err(ServiceError::WouldWait));
    assert_eq!(writing.look_patiently(), Ok(5));
    // The server looks for the end by itself, too, and then all is known.
    cluster.fence();
    cluster.store.take_asked();
    assert_eq!(writing.look(cluster.caller(one)), Ok(5));
    assert!(cluster.store.take_asked().is_empty());
}

#[test]
fn a_writer_that_reclaims_its_open_waits_for_its_size() {
    let (mut cluster, _, opened, _) = Cluster::with_writer();
    let handle = *opened.state.handle();
    cluster.world.restart();
    cluster.store.reach.store(5, Ordering::SeqCst);
    cluster.store.away.store(true, Ordering::SeqCst);
    let one = cluster.returning("a", 1);
    cluster.pass_with(&[&one], 5 * SECOND_NS);
    cluster.reclaim_by(cluster.patient(&one), &handle, BOTH).unwrap();
    let look = || {
        let attr = cluster.service.delegations.attributes(cluster.patient(&one), &handle)?;
        Ok::<_, ServiceError>(attr.size)
    };
    assert_eq!(look(), Err(ServiceError::Delay));
    cluster.store.away.store(false, Ordering::SeqCst);
    assert_eq!(look(), Ok(5));
}
