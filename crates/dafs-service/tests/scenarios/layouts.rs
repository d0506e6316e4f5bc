//! Layouts: their grants, their recalls, and their revocation.

use crate::common::*;
use crate::spread::{Asked, FAILED, Spread, component};
use dafs_service::TransportSecurity::{self, Mtls, None as Clear, Tls};
use dafs_service::{
    Client, Export, ExportOptions, FenceObject, FenceRight, FenceUpdate, Flavour, ForeignUse,
    Handle, Identity, LayoutGranted, LayoutMode, LayoutRequest, Namespace, NfsCaller, OpenHow,
    OpenRequest, Opened, RemoveMode, Result, ServiceError, ShareKey, Squash, StateKind, StateRef,
    Want, WantKind,
};
use dafs_store::LayoutForm;
use dafs_store::{CreateHow, SetAttr, StoreError};
use dafs_testkit::stores::layer::Layered;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ALL: (u64, u64) = (0, u64::MAX);

pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) store: Arc<Layered<Spread>>,
}

impl Deref for Cluster {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let store = Spread::new();
        Self { world: World::over(store.clone()), store }
    }

    /// A cluster with a client that has the file "f" open, and a layout of it for writing.
    pub(crate) fn with_writer() -> (Self, Arc<Client>, Opened, StateRef) {
        let cluster = Self::new();
        let (one, opened, granted) = cluster.writer();
        (cluster, one, opened, granted)
    }

    pub(crate) fn writer(&self) -> (Arc<Client>, Opened, StateRef) {
        let one = self.nfs("a");
        let opened = self.open(&one, "f", BOTH).unwrap();
        let granted = self.get(&one, &opened, true).unwrap().state;
        (one, opened, granted)
    }

    pub(crate) fn get(
        &self,
        client: &Arc<Client>,
        opened: &Opened,
        write: bool,
    ) -> Result<LayoutGranted> {
        self.get_by(client, opened.state.handle(), opened.state.reference(), write)
    }

    pub(crate) fn get_by(
        &self,
        client: &Arc<Client>,
        handle: &Handle,
        state: StateRef,
        write: bool,
    ) -> Result<LayoutGranted> {
        self.get_in(LayoutForm::Stripes, client, handle, (state, write))
    }

    pub(crate) fn get_in(
        &self,
        form: LayoutForm,
        client: &Arc<Client>,
        handle: &Handle,
        (state, write): (StateRef, bool),
    ) -> Result<LayoutGranted> {
        let request = LayoutRequest { state, write, form: Some(form) };
        self.world.service.layouts.get(self.world.patient(client), handle, request, &|_| true)
    }

    pub(crate) fn give_back(&self, client: &Arc<Client>, opened: &Opened, state: StateRef) {
        let (caller, handle) = (self.world.patient(client), opened.state.handle());
        let left =
            self.world.service.layouts.return_one(caller, handle, state, LayoutMode::Any, ALL);
        assert_eq!(left.unwrap(), None);
    }

    pub(crate) fn commit(
        &self,
        client: &Arc<Client>,
        opened: &Opened,
        state: StateRef,
        end: Option<u64>,
    ) -> Result<u64> {
        let (caller, handle) = (self.world.patient(client), opened.state.handle());
        self.world.service.layouts.commit(caller, handle, state, false, end)
    }

    /// Empties the file, as an open with O_TRUNC does.
    pub(crate) fn truncate(&self, client: &Arc<Client>, name: &str) -> Result<Opened> {
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        let how = OpenHow::Create(CreateHow::Unchecked, empty);
        let request = OpenRequest { how, ..self.world.plain(name, "other", BOTH) };
        self.world.service.opens.open(self.world.caller(client), &request)
    }

    pub(crate) fn vouch(
        &self,
        owner: &str,
        opened: &Opened,
        state: StateRef,
        write: bool,
    ) -> Result<Option<Duration>> {
        self.vouch_by(Some(by(Flavour::Sys)), Clear, owner, opened, state, write)
    }

    fn vouch_by(
        &self,
        caller: Option<NfsCaller>,
        security: TransportSecurity,
        owner: &str,
        opened: &Opened,
        state: StateRef,
        write: bool,
    ) -> Result<Option<Duration>> {
        self.world.service.layouts.vouch(&ForeignUse {
            owner: owner.as_bytes(),
            identity: &exchange_id(owner, 1).identity,
            component: &component(&opened.state.handle().file),
            state,
            write,
            caller,
            security,
            now_ns: self.world.now_ns.get(),
        })
    }
}

/// A caller of this host.
fn by(flavour: Flavour) -> NfsCaller {
    NfsCaller { flavour, address: [127, 0, 0, 1].into(), privileged: true }
}

pub(crate) fn recall_of(client: &Arc<Client>, opened: &Opened, state: StateRef) -> Told {
    let state = StateRef { seqid: state.seqid + 1, ..state };
    Told::RecallLayout(client.key(), *opened.state.handle(), state)
}

#[test]
fn an_open_leads_to_a_layout_of_its_kind() {
    let cluster = Cluster::new();
    let client = cluster.nfs("a");
    let opened = cluster.open(&client, "f", READ).unwrap();
    let granted = cluster.get(&client, &opened, false).unwrap();
    assert_eq!(granted.placement.handles().next(), Some(&*component(&opened.state.handle().file)));
    assert_eq!(granted.state.seqid, 1);
    assert_eq!(error(cluster.get(&client, &opened, true)), ServiceError::OpenMode);
    let handle = *opened.state.handle();
    let own = cluster.get_by(&client, &handle, granted.state, true);
    assert_eq!(error(own), ServiceError::OpenMode, "a layout gives no more than the opens");
    // Another open of the client may write, so the layout grows, and its sequence number with it.
    let writer = cluster.open(&client, "f", WRITE).unwrap();
    let more = cluster.get_by(&client, writer.state.handle(), granted.state, true).unwrap();
    assert_eq!(more.state, StateRef { seqid: 2, ..granted.state });
    let kind = cluster.service.state.check_state(cluster.caller(&client), None, more.state);
    assert_eq!(kind, Ok(StateKind::Layout));
    // Concurrent requests carry the same sequence number.
    assert_eq!(cluster.get_by(&client, &handle, granted.state, false).unwrap().state.seqid, 3);
    let future = StateRef { seqid: 9, ..granted.state };
    assert_eq!(error(cluster.get_by(&client, &handle, future, false)), ServiceError::BadStateId);
    assert_eq!(cluster.service.counts().layouts, 1);
}

#[test]
fn a_layout_is_for_its_holder_and_files_with_layouts_only() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    assert_eq!(error(cluster.get(&two, &opened, false)), ServiceError::BadStateId);
    let other = cluster.open(&one, "g", BOTH).unwrap();
    let state = other.state.reference();
    let of_other = cluster.get_by(&one, opened.state.handle(), state, false);
    assert_eq!(error(of_other), ServiceError::BadStateId);
    let special = cluster.get_by(&one, opened.state.handle(), StateRef::ANONYMOUS, false);
    assert_eq!(error(special), ServiceError::BadStateId);
    cluster.store.whole.store(true, Ordering::SeqCst);
    assert_eq!(error(cluster.get(&one, &opened, false)), ServiceError::LayoutUnavailable);
    cluster.store.whole.store(false, Ordering::SeqCst);
    // A client without a back channel would make others wait.
    cluster.service.set_back_channel(&one, false);
    assert_eq!(error(cluster.get(&one, &opened, false)), ServiceError::LayoutUnavailable);
    // A layout that does not fit the answer is not entered.
    cluster.service.set_back_channel(&one, true);
    let request = LayoutRequest { state: opened.state.reference(), write: false, form: None };
    let handle = opened.state.handle();
    let caller = cluster.patient(&one);
    let small = cluster.service.layouts.get(caller, handle, request, &|_| false);
    assert_eq!(error(small), ServiceError::LayoutTooBig);
    assert_eq!(cluster.service.counts().layouts, 0);
}

#[test]
fn it_is_given_back_in_parts_by_mode_and_with_the_last_close() {
    let cluster = Cluster::new();
    let client = cluster.nfs("a");
    let opened = cluster.open(&client, "f", BOTH).unwrap();
    let state = cluster.get(&client, &opened, false).unwrap().state;
    let state = cluster.get_by(&client, opened.state.handle(), state, true).unwrap().state;
    let give = |state, mode, range| {
        let (caller, handle) = (cluster.caller(&client), opened.state.handle());
        cluster.service.layouts.return_one(caller, handle, state, mode, range).unwrap()
    };
    let state = give(state, LayoutMode::Read, ALL).unwrap();
    let state = give(state, LayoutMode::ReadWrite, (0, 4096)).unwrap();
    assert_eq!(cluster.service.counts().layouts, 1);
    assert_eq!(give(state, LayoutMode::Any, (4096, u64::MAX)), None);
    assert_eq!(cluster.service.counts().layouts, 0);
    // A second return is an error.
    let (caller, handle) = (cluster.caller(&client), opened.state.handle());
    let again = cluster.service.layouts.return_one(caller, handle, state, LayoutMode::Any, ALL);
    assert_eq!(error(again), ServiceError::StaleStateId);
    // A close ends the layout, but not while the client has another open of the file.
    cluster.get(&client, &opened, true).unwrap();
    let request = cluster.plain("f", "other", READ);
    let other = cluster.service.opens.open(cluster.caller(&client), &request).unwrap();
    cluster.close(&client, &opened);
    assert_eq!(cluster.service.counts().layouts, 1);
    cluster.close(&client, &other);
    assert_eq!(cluster.service.counts().layouts, 0);
    assert_eq!(cluster.store.take_asked(), [], "who closes has said what it wrote");
    // Returns for a file system, and for all.
    for of in [Some(*opened.state.handle()), None] {
        let opened = cluster.open(&client, "f", BOTH).unwrap();
        cluster.get(&client, &opened, true).unwrap();
        let give = |form, mode| {
            let caller = cluster.caller(&client);
            cluster.service.layouts.return_many(caller, of.as_ref(), form, mode);
        };
        give(LayoutForm::Stripes, LayoutMode::Read);
        assert_eq!(cluster.service.counts().layouts, 1, "it is for writing");
        give(LayoutForm::Copies, LayoutMode::Any);
        assert_eq!(cluster.service.counts().layouts, 1, "it is of the other type");
        give(LayoutForm::Stripes, LayoutMode::Any);
        assert_eq!(cluster.service.counts().layouts, 0);
        cluster.close(&client, &opened);
    }
}

#[test]
fn only_a_writer_commits_a_layout() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let reading = cluster.get(&one, &opened, false).unwrap().state;
    let by_reader = cluster.commit(&one, &opened, reading, Some(10));
    assert_eq!(error(by_reader), ServiceError::BadLayout);
    let writing = cluster.get_by(&one, opened.state.handle(), reading, true).unwrap().state;
    let by_other = cluster.commit(&two, &opened, writing, Some(10));
    assert_eq!(error(by_other), ServiceError::BadStateId);
    let by_open = cluster.commit(&one, &opened, opened.state.reference(), Some(10));
    assert_eq!(error(by_open), ServiceError::BadStateId);
    assert_eq!(cluster.commit(&one, &opened, writing, Some(1000)), Ok(1000));
    assert_eq!(cluster.commit(&one, &opened, writing, Some(10)), Ok(1000), "nothing shrinks");
    assert_eq!(cluster.commit(&one, &opened, writing, None), Ok(1000));
    cluster.give_back(&one, &opened, writing);
    let late = cluster.commit(&one, &opened, writing, Some(2000));
    assert_eq!(error(late), ServiceError::StaleStateId);
    let asked = [Asked::Commit(Some(1000)), Asked::Commit(Some(10)), Asked::Commit(None)];
    assert_eq!(cluster.store.take_asked(), asked);
}

#[test]
fn a_file_is_emptied_when_others_have_given_their_layouts_back() {
    let (cluster, one, opened, granted) = Cluster::with_writer();
    let two = cluster.nfs("b");
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, granted)]);
    // During its recall, it gets no more.
    let more = cluster.get_by(&one, opened.state.handle(), granted, true);
    assert_eq!(error(more), ServiceError::RecallConflict);
    // It is recalled once.
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    assert_eq!(cluster.ear.take(), []);
    // The call did not arrive. It is sent again, with the same sequence number.
    cluster.service.layouts.recall_failed(one.key(), granted);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, granted)]);
    cluster.service.layouts.recall_failed(one.key(), granted);
    cluster.service.set_back_channel(&one, false);
    cluster.service.set_back_channel(&one, true);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, granted)]);
    // Its writes still count.
    assert_eq!(cluster.commit(&one, &opened, granted, Some(77)), Ok(77));
    cluster.give_back(&one, &opened, granted);
    cluster.truncate(&two, "f").unwrap();
    assert_eq!(cluster.service.counts().recalled_layouts, 0);
    // A client's own layout does not conflict, and another's for reading does not conflict with a
    // write.
    let granted = cluster.get(&one, &opened, true).unwrap();
    let other = cluster.truncate(&one, "f").unwrap();
    assert_eq!(cluster.ear.take(), []);
    cluster.close(&one, &other);
    // A client that does not know the layout says so instead of returning it. The layout may be
    // still on its way to the client, so data servers are notified.
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.service.layouts.forgotten(one.key(), granted.state);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.pass_with(&[&one, &two], SECOND_NS);
    cluster.truncate(&two, "f").unwrap();
    assert_eq!(
        cluster.store.take_asked(),
        [Asked::Commit(Some(77)), Asked::Forget, Asked::RecoverSize]
    );
}

#[test]
fn any_other_size_has_layouts_given_back_first() {
    let (cluster, one, opened, granted) = Cluster::with_writer();
    let two = cluster.nfs("b");
    let set = |change| {
        let (caller, handle) = (cluster.caller(&two), opened.state.handle());
        cluster.service.setattr(caller, handle, StateRef::ANONYMOUS, &change)
    };
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(error(set(size(5))), ServiceError::WouldWait);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, granted)]);
    set(SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    cluster.give_back(&one, &opened, granted);
    assert_eq!(set(size(5)).unwrap().size, 5);
}

#[test]
fn a_recall_after_a_part_was_given_back_has_a_new_number() {
    let (cluster, one, opened, granted) = Cluster::with_writer();
    let two = cluster.nfs("b");
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.ear.take();
    let (caller, handle) = (cluster.caller(&one), opened.state.handle());
    let part = (0, 4096);
    let left = cluster.service.layouts.return_one(caller, handle, granted, LayoutMode::Any, part);
    let left = left.unwrap().unwrap();
    cluster.service.layouts.recall_failed(one.key(), granted);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, left)]);
}

#[test]
fn an_administrator_or_a_read_only_export_fences_layouts() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    cluster.serve(&[("", false)]);
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    cluster.get(&one, &opened, true).unwrap();
    cluster.serve(&[("", true)]);
    assert_eq!(cluster.service.counts().layouts, 0);
    cluster.pass_with(&[&one], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
    // The export is removed, and with it the open.
    cluster.serve(&[("", false)]);
    let opened = cluster.open(&one, "f", READ).unwrap();
    cluster.get(&one, &opened, false).unwrap();
    cluster.serve(&[("other", false)]);
    cluster.pass_with(&[&one], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    assert_eq!(cluster.service.counts().layouts, 0);
}

#[test]
fn a_delegation_that_is_taken_takes_the_layout_along() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let want = Want { kind: WantKind::Write, ..Want::default() };
    let request = OpenRequest { want, ..cluster.plain("f", "owner", BOTH) };
    let opened = cluster.service.opens.open(cluster.caller(&one), &request).unwrap();
    let delegation = opened.delegation.unwrap().state;
    cluster.get_by(&one, opened.state.handle(), delegation, true).unwrap();
    cluster.close(&one, &opened);
    assert_eq!(cluster.service.counts().layouts, 1);
    let second = cluster.open(&two, "f", BOTH);
    assert_eq!(error(second), ServiceError::WouldWait);
    cluster.pass_with(&[&one, &two], LEASE_NS + SECOND_NS);
    assert_eq!(cluster.service.counts().layouts, 0);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
}

#[test]
fn a_flavour_that_the_export_does_not_admit_is_refused_at_data_servers() {
    let (cluster, _one, opened, _) = Cluster::with_writer();
    let state = opened.state.reference();
    for flavour in Flavour::ALL {
        let vouched = cluster.vouch_by(Some(by(flavour)), Clear, "a", &opened, state, false);
        let admitted = cluster.service.namespace();
        let admitted = admitted.export(opened.state.handle()).unwrap().options();
        if admitted.admits.flavours.contains(&flavour) {
            assert_eq!(vouched, Ok(None), "{flavour:?}");
        } else {
            assert_eq!(vouched, Err(StoreError::Access.into()), "{flavour:?}");
        }
    }
    cluster.vouch("a", &opened, state, true).unwrap();
    let refused = cluster.vouch_by(Some(by(Flavour::Krb5p)), Clear, "a", &opened, state, true);
    assert_eq!(refused, Err(StoreError::Access.into()));
}

/// The demands of a new configuration hold at data servers at once, though these keep their own.
#[test]
fn a_connection_that_the_export_does_not_admit_now_is_refused_at_data_servers() {
    let (cluster, _one, opened, _) = Cluster::with_writer();
    let state = opened.state.reference();
    let demand = |least, flavour| {
        let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        (options.admits.transport_security, options.admits.flavours) = (least, vec![flavour]);
        let export = Export::new("", cluster.store.clone(), options);
        cluster.service.replace_namespace(Namespace::new(vec![export]).unwrap());
    };
    let vouch = |flavour: Option<Flavour>, security| {
        cluster.vouch_by(flavour.map(by), security, "a", &opened, state, false)
    };
    for least in [Clear, Tls, Mtls] {
        demand(least, Flavour::Sys);
        for security in [Clear, Tls, Mtls] {
            let admitted =
                if security >= least { Ok(None) } else { Err(StoreError::Access.into()) };
            // A session of DAFS has no flavour.
            for flavour in [None, Some(Flavour::Sys)] {
                assert_eq!(vouch(flavour, security), admitted, "{least} {security}");
            }
        }
    }
    demand(Clear, Flavour::Krb5p);
    assert_eq!(vouch(Some(Flavour::Krb5p), Clear), Ok(None));
    for flavour in [None, Some(Flavour::Sys)] {
        assert_eq!(vouch(flavour, Mtls), Err(StoreError::Access.into()), "it proves no user");
    }
}

/// The same of networks and ports. They are rules for NFS alone.
#[test]
fn an_address_that_the_export_does_not_admit_now_is_refused_at_data_servers() {
    let (cluster, _one, opened, _) = Cluster::with_writer();
    let state = opened.state.reference();
    let admit = |network: &str, unprivileged_ports| {
        let mut options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        options.admits.networks = vec![network.parse().unwrap()];
        options.admits.unprivileged_ports = unprivileged_ports;
        let export = Export::new("", cluster.store.clone(), options);
        cluster.service.replace_namespace(Namespace::new(vec![export]).unwrap());
    };
    let vouch = |address: &str, privileged| {
        let address = address.parse().unwrap();
        let caller = NfsCaller { flavour: Flavour::Sys, address, privileged };
        let vouched = cluster.vouch_by(Some(caller), Clear, "a", &opened, state, true);
        assert!(vouched.is_ok() || vouched == Err(StoreError::Access.into()), "{vouched:?}");
        vouched.is_ok()
    };
    assert!(vouch("127.0.0.1", true) && !vouch("127.0.0.1", false) && !vouch("192.0.2.1", true));
    admit("192.0.2.0/24", false);
    assert!(vouch("192.0.2.1", true) && !vouch("192.0.2.1", false) && !vouch("127.0.0.1", true));
    admit("2001:db8::/32", true);
    assert!(vouch("2001:db8::9", false) && !vouch("192.0.2.1", true));
    assert_eq!(cluster.vouch_by(None, Clear, "a", &opened, state, true), Ok(None));
}

#[test]
fn a_fence_sends_everybody_to_this_server() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let other = cluster.open(&one, "g", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.get(&one, &other, true).unwrap();
    let state = opened.state.reference();
    let object = FenceObject::File(*opened.state.handle());
    let fence = |update| {
        let service = &cluster.service;
        service.set_fence(FenceRight::Administrator, &object, update, Box::new(|| {}))
    };
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(error(fence(FenceUpdate::Install(&[b"dafs:somebody"]))), ServiceError::Delay);
    assert_eq!(error(cluster.vouch("a", &opened, state, true)), ServiceError::BadLayout);
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.store.take_asked();
    // A retry completes it, although the list has been set since.
    fence(FenceUpdate::Install(&[b"dafs:somebody"])).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
    let caller = cluster.caller(&one);
    let test = cluster.service.state.check_state(caller, None, granted);
    assert_eq!(test, Err(ServiceError::StaleStateId));
    assert_eq!(error(cluster.get(&one, &opened, false)), ServiceError::LayoutUnavailable);
    assert_eq!(cluster.vouch("a", &other, other.state.reference(), true), Ok(None));
}

#[test]
fn all_layouts_are_taken_at_once_and_asked_for_anew() {
    let (cluster, one, opened, granted) = Cluster::with_writer();
    let other = cluster.open(&one, "g", BOTH).unwrap();
    cluster.get(&one, &other, true).unwrap();
    let state = opened.state.reference();
    cluster.vouch("a", &opened, state, true).unwrap();
    let take = || cluster.service.layouts.take_all();
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(take(), Err(ServiceError::Delay));
    cluster.store.away.store(false, Ordering::SeqCst);
    take().unwrap();
    for file in [&opened, &other] {
        let vouched = cluster.vouch("a", file, file.state.reference(), true);
        assert_eq!(error(vouched), ServiceError::BadLayout);
    }
    let test = cluster.service.state.check_state(cluster.caller(&one), None, granted);
    assert_eq!(test, Err(ServiceError::StaleStateId));
    cluster.get(&one, &opened, true).unwrap();
    cluster.vouch("a", &opened, state, true).unwrap();
}

#[test]
fn a_name_is_removed_or_replaced_when_others_have_given_their_layouts_back() {
    for replaced in [false, true] {
        let cluster = Cluster::new();
        let (world, service) = (&cluster.world, &cluster.service);
        let (one, two) = (world.nfs("a"), world.nfs("b"));
        let opened = world.open(&one, "f", BOTH).unwrap();
        let granted = cluster.get(&one, &opened, false).unwrap().state;
        let other = world.open(&two, "g", BOTH).unwrap();
        // The client's own layout does not conflict.
        cluster.get(&two, &other, true).unwrap();
        let go = || {
            let (caller, root) = (world.caller(&two), &world.root);
            match replaced {
                false => service.remove(caller, root, b"f", RemoveMode::Unchecked).map(drop),
                true => service.rename(caller, root, b"g", root, b"f").map(drop),
            }
        };
        assert_eq!(error(go()), ServiceError::WouldWait);
        assert_eq!(world.ear.take(), [recall_of(&one, &opened, granted)]);
        let there = world.open(&two, "f", READ).unwrap();
        assert_eq!(there.state.handle(), opened.state.handle(), "nothing has happened yet");
        world.close(&two, &there);
        cluster.give_back(&one, &opened, granted);
        go().unwrap();
        assert_eq!(world.ear.take(), []);
    }
}

#[test]
fn an_unreturned_layout_is_revoked_and_fenced_before_any_change() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let theirs = cluster.open(&two, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    let state = opened.state.reference();
    assert_eq!(cluster.vouch("a", &opened, state, true), Ok(None));
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.pass_with(&[&one, &two], LEASE_NS + SECOND_NS);
    // From now on data servers get a refusal, but they may honour cached authorisations.
    assert_eq!(error(cluster.vouch("a", &opened, state, true)), ServiceError::BadLayout);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    // Others are told to retry, for a short while.
    assert_eq!(error(cluster.get(&two, &theirs, false)), ServiceError::Delay);
    cluster.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(error(cluster.get(&two, &theirs, false)), ServiceError::LayoutUnavailable);
    assert_eq!(error(cluster.get(&one, &opened, true)), ServiceError::LayoutUnavailable);
    assert_eq!(cluster.service.counts().fenced_layouts, 1);
    assert!(cluster.store.take_asked().contains(&Asked::Forget));
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
    cluster.truncate(&two, "f").unwrap();
    // Its holder is told once: Linux would drop the layouts that it gets afterwards, too.
    let told = || one.status().recallable_revoked;
    assert_eq!([told(), told()], [true, false]);
    let test = cluster.service.state.check_state(cluster.caller(&one), None, granted);
    assert_eq!(test, Err(ServiceError::StaleStateId));
    assert_eq!(cluster.service.counts().revoked, 0);
    // Others shall not wait for it at each file.
    let other = cluster.open(&one, "g", BOTH).unwrap();
    assert_eq!(error(cluster.get(&one, &other, true)), ServiceError::LayoutUnavailable);
    cluster.pass_with(&[&one, &two], LEASE_NS);
    cluster.get(&one, &other, true).unwrap();
}

#[test]
fn others_change_nothing_while_data_servers_honour_a_returned_layout() {
    let cluster = Cluster::new();
    cluster.store.grant_ttl_seconds.store(8, Ordering::SeqCst);
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let use_it = || {
        let granted = cluster.get(&one, &opened, true).unwrap().state;
        cluster.give_back(&one, &opened, granted);
    };
    use_it();
    cluster.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [], "nobody asks for it");
    cluster.truncate(&one, "f").unwrap();
    assert_eq!(cluster.store.take_asked(), [], "it was its own");
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.pass_with(&[&one, &two], 60 * SECOND_NS);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.pass_with(&[&one, &two], SECOND_NS);
    cluster.truncate(&two, "f").unwrap();
    assert_eq!(cluster.store.take_asked().last(), Some(&Asked::Forget), "nothing was written");
    use_it();
    cluster.pass_with(&[&one, &two], 10 * SECOND_NS);
    cluster.truncate(&two, "f").unwrap();
    assert_eq!(cluster.store.take_asked(), [], "it is over by itself");
    // A fence asks at once.
    use_it();
    let object = FenceObject::File(*opened.state.handle());
    let update = FenceUpdate::Install(&[b"dafs:somebody"]);
    let service = &cluster.service;
    service.set_fence(FenceRight::Administrator, &object, update, Box::new(|| {})).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
}

/// A client that has closed a file may write it for some seconds by what data servers remember.
#[test]
fn a_strict_key_comes_when_data_servers_have_forgotten_a_returned_layout() {
    let cluster = Cluster::new();
    cluster.store.grant_ttl_seconds.store(8, Ordering::SeqCst);
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.give_back(&one, &opened, granted);
    cluster.close(&one, &opened);
    let key = |strict| Some(ShareKey { key: 1, strict });
    let open = |share_key| {
        let request = OpenRequest { share_key, ..cluster.plain("f", "keyed", BOTH) };
        cluster.service.opens.open(cluster.caller(&two), &request)
    };
    let advisory = open(key(false)).unwrap();
    assert_eq!(cluster.store.take_asked(), [], "it excludes nobody without a key");
    assert_eq!(error(open(key(true))), ServiceError::WouldWait);
    cluster.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    open(key(true)).unwrap();
    cluster.close(&two, &advisory);
}

#[test]
fn a_client_that_is_gone_leaves_nothing_that_data_servers_go_by() {
    let (cluster, _, opened, _) = Cluster::with_writer();
    let two = cluster.nfs("b");
    let state = opened.state.reference();
    cluster.pass_with(&[&two], LEASE_NS + SECOND_NS);
    assert_eq!(error(cluster.vouch("a", &opened, state, false)), ServiceError::Expired);
    // No client's request has conflicted yet.
    assert_eq!(cluster.store.take_asked(), []);
    assert_eq!(error(cluster.truncate(&two, "f")), ServiceError::WouldWait);
    cluster.pass_with(&[&two], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget, Asked::RecoverSize]);
    cluster.truncate(&two, "f").unwrap();
    assert_eq!(cluster.service.counts().layouts, 0);
}

#[test]
fn a_client_that_starts_anew_has_its_old_layouts_fenced() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", READ).unwrap();
    cluster.get(&one, &opened, false).unwrap();
    let again = cluster.returning("a", 2);
    assert_eq!(cluster.service.counts().fenced_layouts, 1);
    cluster.pass_with(&[&again], SECOND_NS);
    assert_eq!(cluster.store.take_asked(), [Asked::Forget], "it wrote nothing");
    assert_eq!(cluster.service.counts().fenced_layouts, 0);
}

#[test]
fn a_file_that_moves_has_its_layouts_recalled() {
    let (cluster, one, opened, granted) = Cluster::with_writer();
    cluster.store.epoch.store(7, Ordering::SeqCst);
    cluster.store.moved.lock().unwrap().push(opened.state.handle().file);
    cluster.pass_with(&[&one], SECOND_NS);
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, granted)]);
    cluster.give_back(&one, &opened, granted);
    assert_eq!(cluster.get(&one, &opened, true).unwrap().placement.epoch, 7);
}

#[test]
fn data_servers_are_told_the_truth() {
    let cluster = Cluster::new();
    let (one, _two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let reader = cluster.open(&one, "g", READ).unwrap();
    let state = opened.state.reference();
    assert_eq!(error(cluster.vouch("a", &opened, state, false)), ServiceError::BadLayout);
    let granted = cluster.get(&one, &opened, false).unwrap().state;
    assert_eq!(cluster.vouch("a", &opened, state, false), Ok(None));
    // A data server accepts a sequence number that is zero, or not current any more.
    assert_eq!(cluster.vouch("a", &opened, StateRef { seqid: 0, ..state }, false), Ok(None));
    let future = StateRef { seqid: state.seqid + 1, ..state };
    assert_eq!(error(cluster.vouch("a", &opened, future, false)), ServiceError::BadStateId);
    // Only state-ids that give a right are accepted, and only from their client.
    for state in [StateRef::ANONYMOUS, StateRef::READ_BYPASS, granted] {
        let refused = cluster.vouch("a", &opened, state, false);
        assert_eq!(error(refused), ServiceError::BadStateId);
    }
    let component = component(&opened.state.handle().file);
    let somebody = Identity { mechanism: "sys", principal: b"7".to_vec() };
    let now_ns = cluster.now_ns.get();
    let by_other = cluster.service.layouts.vouch(&ForeignUse {
        owner: b"a",
        identity: &somebody,
        component: &component,
        state,
        write: false,
        caller: Some(by(Flavour::Sys)),
        security: Clear,
        now_ns,
    });
    assert_eq!(error(by_other), ServiceError::BadStateId);
    assert_eq!(error(cluster.vouch("a", &opened, state, true)), ServiceError::BadLayout);
    assert_eq!(error(cluster.vouch("b", &opened, state, false)), ServiceError::BadStateId);
    // The state-id of another file, and no state-id at all.
    let of_reader = reader.state.reference();
    assert_eq!(error(cluster.vouch("a", &opened, of_reader, false)), ServiceError::BadLayout);
    cluster.get(&one, &reader, false).unwrap();
    assert_eq!(error(cluster.vouch("a", &opened, of_reader, false)), ServiceError::BadLayout);
    assert_eq!(error(cluster.vouch("a", &reader, of_reader, true)), ServiceError::OpenMode);
    let forged = StateRef { id: dafs_service::StateId(state.id.0 + 1000), seqid: 1 };
    assert_eq!(error(cluster.vouch("a", &opened, forged, false)), ServiceError::BadStateId);
    cluster.close(&one, &opened);
    assert_eq!(error(cluster.vouch("a", &opened, state, false)), ServiceError::StaleStateId);
}

#[test]
fn directories_and_read_only_exports_have_none_for_writing() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let root = cluster.root;
    let of_root = cluster.get_by(&one, &root, opened.state.reference(), false);
    assert_eq!(error(of_root), ServiceError::BadStateId);
    cluster.serve(&[("", true)]);
    let read_only = cluster.get(&one, &opened, true);
    assert_eq!(error(read_only), ServiceError::Store(StoreError::ReadOnly));
    cluster.get(&one, &opened, false).unwrap();
}

#[test]
fn a_form_that_the_store_has_not_is_not_given() {
    let cluster = Cluster::new();
    let client = cluster.nfs("a");
    let opened = cluster.open(&client, "f", BOTH).unwrap();
    let (handle, state) = (*opened.state.handle(), opened.state.reference());
    let get = |form| cluster.get_in(form, &client, &handle, (state, true));
    assert_eq!(error(get(LayoutForm::Copies)), ServiceError::LayoutUnavailable);
    cluster.store.copies.store(true, Ordering::SeqCst);
    assert_eq!(error(get(LayoutForm::Stripes)), ServiceError::LayoutUnavailable);
    assert_eq!(get(LayoutForm::Copies).unwrap().placement.handles().count(), 2);
}

#[test]
fn data_servers_go_by_a_layout_for_as_long_as_its_holder_may_use_the_file() {
    let cluster = Cluster::new();
    cluster.store.copies.store(true, Ordering::SeqCst);
    let client = cluster.nfs("a");
    let reader = cluster.open(&client, "f", READ).unwrap();
    let (handle, state) = (*reader.state.handle(), reader.state.reference());
    let read = cluster.get_in(LayoutForm::Copies, &client, &handle, (state, false)).unwrap();
    let layout = StateRef { seqid: 0, ..read.state };
    assert_eq!(cluster.vouch("a", &reader, layout, false), Ok(None));
    assert_eq!(error(cluster.vouch("a", &reader, layout, true)), ServiceError::OpenMode);
    assert_eq!(error(cluster.vouch("b", &reader, layout, false)), ServiceError::BadStateId);
    // Another open gives the right, and only a layout for writing gives the place.
    let request = cluster.plain("f", "writer", WRITE);
    let writer = cluster.service.opens.open(cluster.caller(&client), &request).unwrap();
    assert_eq!(error(cluster.vouch("a", &reader, layout, true)), ServiceError::BadLayout);
    let state = writer.state.reference();
    cluster.get_in(LayoutForm::Copies, &client, &handle, (state, true)).unwrap();
    assert_eq!(cluster.vouch("a", &reader, layout, true), Ok(None));
    cluster.close(&client, &writer);
    assert_eq!(error(cluster.vouch("a", &reader, layout, true)), ServiceError::OpenMode);
    cluster.close(&client, &reader);
    assert_eq!(error(cluster.vouch("a", &reader, layout, false)), ServiceError::StaleStateId);
}

#[test]
fn a_layout_is_given_back_by_its_last_number_alone() {
    let cluster = Cluster::new();
    let client = cluster.nfs("a");
    let opened = cluster.open(&client, "f", BOTH).unwrap();
    let first = cluster.get(&client, &opened, false).unwrap().state;
    let handle = *opened.state.handle();
    let second = cluster.get_by(&client, &handle, first, true).unwrap().state;
    let (caller, service) = (cluster.caller(&client), &cluster.service);
    // The holder did not know of the later grant when it returned this layout.
    let early = service.layouts.return_one(caller, &handle, first, LayoutMode::Any, ALL);
    assert_eq!(early, Err(ServiceError::OldStateId));
    cluster.give_back(&client, &opened, second);
}

#[test]
fn the_store_learns_whether_anybody_writes_by_itself() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let file = opened.state.handle().file;
    let ask = |recall| {
        cluster.store.write_recalls.lock().unwrap().push((file, recall));
        cluster.pass_with(&[&one], SECOND_NS);
        cluster.store.without_writers.lock().unwrap().pop().unwrap()
    };
    assert!(ask(true));
    let reading = cluster.get(&one, &opened, false).unwrap().state;
    assert!(ask(true), "readers are in nobody's way");
    assert_eq!(cluster.ear.take(), []);
    let writing = cluster.get_by(&one, opened.state.handle(), reading, true).unwrap().state;
    assert!(!ask(false));
    assert_eq!(cluster.ear.take(), []);
    assert!(!ask(true));
    assert_eq!(cluster.ear.take(), [recall_of(&one, &opened, writing)]);
    cluster.give_back(&one, &opened, writing);
    assert!(ask(true));
    // The file of a client that does not know its layout is held back until its size is known.
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    cluster.store.away.store(true, Ordering::SeqCst);
    cluster.service.layouts.forgotten(one.key(), granted);
    assert!(!ask(false));
    cluster.store.away.store(false, Ordering::SeqCst);
    cluster.pass_with(&[&one], SECOND_NS);
    assert!(ask(false));
}

#[test]
fn a_layout_holder_reports_a_failed_device() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.nfs("a"), cluster.nfs("b"));
    let opened = cluster.open(&one, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    let report = |client, state| {
        let caller = cluster.patient(client);
        cluster.service.layouts.report(caller, &handle, state, &[FAILED])
    };
    let reading = cluster.get(&one, &opened, false).unwrap().state;
    report(&one, reading).unwrap();
    assert_eq!(cluster.store.take_asked(), [], "readers know nothing of writing");
    let writing = cluster.get_by(&one, &handle, reading, true).unwrap().state;
    assert_eq!(error(report(&two, writing)), ServiceError::BadStateId);
    assert_eq!(error(report(&one, opened.state.reference())), ServiceError::BadStateId);
    report(&one, writing).unwrap();
    assert_eq!(cluster.store.take_asked(), [Asked::Report(FAILED)]);
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(error(report(&one, writing)), ServiceError::Delay);
}
