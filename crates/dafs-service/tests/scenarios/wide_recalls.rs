//! Recalls of many layouts together, and notifications about deleted devices.

use crate::common::*;
use crate::layouts::{Cluster, recall_of};
use crate::spread::{Asked, DEVICE, Spread};
use dafs_service::limits::LAYOUT_RECALLS_ONE_BY_ONE_MAX;
use dafs_service::{
    Client, Export, ExportOptions, FenceObject, FenceRight, FenceUpdate, LayoutMode, Namespace,
    Opened, ServiceError, Squash,
};
use dafs_store::{DeviceKey, LayoutForm, Store};
use dafs_testkit::stores::layer::Layered;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MANY: usize = LAYOUT_RECALLS_ONE_BY_ONE_MAX + 1;

/// Opens files and gets layouts of them for a client.
fn files(cluster: &Cluster, client: &Arc<Client>, count: usize) -> Vec<Opened> {
    let open = |number| {
        let opened = cluster.open(client, &format!("f{number}"), BOTH).unwrap();
        cluster.get(client, &opened, true).unwrap();
        opened
    };
    (0..count).map(open).collect()
}

/// Makes the store report that all of them have moved.
fn move_away(cluster: &Cluster, files: &[Opened]) {
    let moved = files.iter().map(|opened| opened.state.handle().file);
    cluster.store.moved.lock().unwrap().extend(moved);
}

fn whole(client: &Arc<Client>, opened: &Opened) -> Told {
    Told::RecallLayouts(client.key(), Some(*opened.state.handle()))
}

#[test]
fn many_layouts_of_a_file_system_are_recalled_together_and_none_is_given_meanwhile() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let own = files(&cluster, &one, MANY);
    let few = files(&cluster, &two, 2);
    world.ear.take();
    move_away(&cluster, &own);
    world.pass_with(&[&one, &two], SECOND_NS);
    let mut told = world.ear.take();
    let wide: Vec<_> =
        told.extract_if(.., |told| matches!(told, Told::RecallLayouts(..))).collect();
    let [Told::RecallLayouts(client, Some(handle))] = wide[..] else { panic!("{wide:?}") };
    assert_eq!((client, handle.fs), (one.key(), own[0].state.handle().fs));
    assert_eq!(told.len(), few.len(), "the other client has few: {told:?}");
    // Neither a file of a recalled layout nor another one gets a layout.
    let other = world.open(&one, "other", BOTH).unwrap();
    assert_eq!(error(cluster.get(&one, &other, true)), ServiceError::RecallConflict);
    assert_eq!(error(cluster.get(&one, &own[0], true)), ServiceError::RecallConflict);
    // It is not recalled twice.
    move_away(&cluster, &own);
    world.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(world.ear.take(), []);
    let root = Some(&world.root);
    service.layouts.return_many(world.caller(&one), root, LayoutForm::Stripes, LayoutMode::Any);
    assert_eq!(service.counts().layouts, few.len());
    cluster.get(&one, &other, true).unwrap();
}

#[test]
fn a_few_of_many_layouts_are_recalled_one_by_one() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let own = files(&cluster, &one, 3 * MANY);
    cluster.ear.take();
    move_away(&cluster, &own[..MANY]);
    cluster.pass_with(&[&one], SECOND_NS);
    let told = cluster.ear.take();
    assert_eq!(told.len(), MANY);
    assert!(told.iter().all(|told| matches!(told, Told::RecallLayout(..))), "{told:?}");
}

#[test]
fn layouts_given_back_together_wait_for_data_servers_a_short_while_or_not_at_all() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let own = files(&cluster, &one, MANY);
    let write = |own: &[Opened]| {
        own.iter().for_each(|opened| {
            cluster.get(&one, opened, true).unwrap();
            cluster.vouch("a", opened, opened.state.reference(), true).unwrap();
        });
        cluster.store.take_asked();
    };
    let returned = |of| {
        service.layouts.return_many(world.patient(&one), of, LayoutForm::Stripes, LayoutMode::Any);
        assert_eq!(service.counts().layouts, 0);
        cluster.store.take_asked().len()
    };
    write(&own);
    assert_eq!(returned(Some(&world.root)), MANY);
    assert_eq!(service.counts().fenced_layouts, 0);
    // They may be on any stores, so the answer does not wait for the data servers.
    write(&own);
    assert_eq!(returned(None), 0);
    world.fence();
    assert_eq!((cluster.store.take_asked().len(), service.counts().fenced_layouts), (MANY, 0));
    // A slow store is asked for two seconds, and one that is away is asked once.
    write(&own);
    cluster.store.call_milliseconds.store(700, Ordering::SeqCst);
    assert!(returned(Some(&world.root)) < MANY);
    cluster.store.call_milliseconds.store(0, Ordering::SeqCst);
    write(&own);
    cluster.store.away.store(true, Ordering::SeqCst);
    assert_eq!(returned(Some(&world.root)), 1);
}

#[test]
fn files_of_which_nothing_can_be_found_out_keep_no_other_store_waiting() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let own = files(&cluster, &one, MANY);
    own.iter().for_each(|opened| {
        cluster.vouch("a", opened, opened.state.reference(), true).unwrap();
    });
    cluster.store.away.store(true, Ordering::SeqCst);
    service.layouts.return_many(world.patient(&one), None, LayoutForm::Stripes, LayoutMode::Any);
    cluster.store.take_asked();
    // One question in a round. In the next round it is another file's turn.
    (0..MANY).for_each(|_| world.fence());
    assert_eq!(cluster.store.take_asked(), vec![Asked::RecoverSize; MANY]);
    assert_eq!(service.counts().fenced_layouts, MANY);
    // A file that is held back comes first.
    let other = world.open(&two, "g", BOTH).unwrap();
    let granted = cluster.get(&two, &other, true).unwrap().state;
    service.layouts.forgotten(two.key(), granted);
    world.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    cluster.store.away.store(false, Ordering::SeqCst);
    world.fence();
    assert_eq!(cluster.store.take_asked().len(), MANY + 2);
    assert_eq!(service.counts().fenced_layouts, 0);
}

#[test]
fn a_client_that_forgot_all_has_no_grant_at_data_servers() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let own = files(&cluster, &one, MANY);
    move_away(&cluster, &own);
    world.pass_with(&[&one], SECOND_NS);
    let handle = own[0].state.handle();
    service.layouts.wide_forgotten(one.key(), Some(handle), LayoutForm::Copies);
    assert_eq!(service.counts().layouts, MANY, "of the other type");
    service.layouts.wide_forgotten(one.key(), Some(handle), LayoutForm::Stripes);
    assert_eq!((service.counts().layouts, service.counts().fenced_layouts), (0, MANY));
    world.fence();
    cluster.get(&one, &own[0], true).unwrap();
}

#[test]
fn a_client_without_wide_recalls_gets_one_for_each_file() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let one = world.nfs("a");
    let own = files(&cluster, &one, MANY);
    let states: Vec<_> =
        own.iter().map(|opened| cluster.get(&one, opened, true).unwrap().state).collect();
    move_away(&cluster, &own);
    world.pass_with(&[&one], SECOND_NS);
    world.ear.take();
    let handle = own[0].state.handle();
    service.layouts.wide_recall_failed(one.key(), Some(handle), LayoutForm::Stripes);
    service.set_back_channel(&one, false);
    service.set_back_channel(&one, true);
    let told = world.ear.take();
    assert_eq!(told.len(), MANY);
    for (opened, state) in own.iter().zip(states) {
        assert!(told.contains(&recall_of(&one, opened, state)), "{told:?}");
    }
    // The client returns no layout, so they are revoked.
    world.pass_with(&[&one], LEASE_NS + SECOND_NS);
    assert_eq!(service.counts().layouts, 0);
}

#[test]
fn holders_hear_of_a_file_system_that_is_fenced() {
    let cluster = Cluster::new();
    let (world, one) = (&cluster.world, cluster.nfs("a"));
    let own = files(&cluster, &one, 3);
    world.ear.take();
    let object = FenceObject::FileSystem(own[0].state.handle().fs);
    let update = FenceUpdate::Install(&[b"dafs:somebody"]);
    world.service.set_fence(FenceRight::Administrator, &object, update, Box::new(|| {})).unwrap();
    let told = world.ear.take();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(own.iter().any(|opened| told[0] == whole(&one, opened)));
}

#[test]
fn word_of_a_device_that_is_gone_comes_when_no_layout_names_it() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let watch =
        |client, wanted| service.layouts.watch_device(client, DEVICE, LayoutForm::Stripes, wanted);
    assert!(watch(&one, true) && watch(&one, true) && watch(&two, true));
    assert!(!watch(&two, false), "not any more");
    let opened = world.open(&one, "f", BOTH).unwrap();
    let granted = cluster.get(&one, &opened, true).unwrap().state;
    world.ear.take();
    cluster.store.gone.lock().unwrap().extend([DEVICE, DeviceKey([3; 16])]);
    world.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(world.ear.take(), [], "its layout names the device");
    cluster.give_back(&one, &opened, granted);
    world.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(world.ear.take(), [Told::DeviceGone(one.key(), DEVICE)]);
    world.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(world.ear.take(), []);
    service.set_back_channel(&one, false);
    assert!(!watch(&one, true), "nobody could tell it");
}

#[test]
fn a_client_that_asks_twice_about_a_device_is_noted_once() {
    let cluster = Cluster::new();
    let one = cluster.nfs("a");
    let before = Arc::weak_count(&one);
    for _ in 0..1000 {
        for wanted in [true, false] {
            cluster.service.layouts.watch_device(&one, DEVICE, LayoutForm::Stripes, wanted);
        }
    }
    assert!(Arc::weak_count(&one) <= before + 1);
}

/// Two exports, and a client with layouts of each, as many as are recalled together.
struct Two {
    cluster: Cluster,
    second: Arc<Layered<Spread>>,
    client: Arc<Client>,
    files: [Vec<Opened>; 2],
}

impl Two {
    fn new() -> Self {
        let mut cluster = Cluster::new();
        let second = Spread::second();
        let stores: [(&str, Arc<dyn Store>); 2] =
            [("a", cluster.store.clone()), ("b", second.clone())];
        let options = || ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let exports = stores.map(|(name, store)| Export::new(name, store, options()));
        let roots = [exports[0].root(), exports[1].root()];
        cluster.service.replace_namespace(Namespace::new(exports.into()).unwrap());
        let client = cluster.nfs("a");
        let files = roots.map(|root| {
            cluster.world.root = root;
            files(&cluster, &client, MANY)
        });
        cluster.ear.take();
        Self { cluster, second, client, files }
    }

    /// Makes the files of these exports move. Returns the calls to the client.
    fn move_away(&self, exports: &[usize]) -> Vec<Told> {
        let stores = [&self.cluster.store, &self.second];
        for &export in exports {
            let moved = self.files[export].iter().map(|opened| opened.state.handle().file);
            stores[export].moved.lock().unwrap().extend(moved);
        }
        self.cluster.pass_with(&[&self.client], SECOND_NS);
        self.cluster.ear.take()
    }

    /// Returns the layouts of the file system of an export, or all.
    fn give_back(&self, of: Option<usize>) {
        let of = of.map(|export| self.files[export][0].state.handle());
        let caller = self.cluster.caller(&self.client);
        let service = &self.cluster.service;
        service.layouts.return_many(caller, of, LayoutForm::Stripes, LayoutMode::Any);
    }

    /// Asks for a layout of the first file of an export.
    fn ask(&self, export: usize) -> Result<(), ServiceError> {
        self.cluster.get(&self.client, &self.files[export][0], true).map(drop)
    }

    fn layouts(&self) -> usize {
        self.cluster.service.counts().layouts
    }
}

#[test]
fn layouts_of_one_file_system_are_recalled_and_go_back_without_those_of_another() {
    let two = Two::new();
    let told = two.move_away(&[0]);
    let [Told::RecallLayouts(_, Some(handle))] = told[..] else { panic!("{told:?}") };
    assert_eq!(handle.fs, two.files[0][0].state.handle().fs);
    assert_eq!(two.ask(0), Err(ServiceError::RecallConflict));
    assert_eq!(two.ask(1), Ok(()));
    // A return for the other file system is no answer.
    two.give_back(Some(1));
    assert_eq!(two.layouts(), MANY);
    assert_eq!(two.ask(0), Err(ServiceError::RecallConflict));
    two.give_back(Some(0));
    assert_eq!(two.layouts(), 0);
    assert_eq!([two.ask(0), two.ask(1)], [Ok(()), Ok(())]);
    two.give_back(None);
    assert_eq!(two.layouts(), 0, "all are of both");
}

#[test]
fn layouts_of_all_that_a_client_has_are_recalled_together() {
    let two = Two::new();
    assert_eq!(two.move_away(&[0, 1]), [Told::RecallLayouts(two.client.key(), None)]);
    let conflict = Err(ServiceError::RecallConflict);
    assert_eq!([two.ask(0), two.ask(1)], [conflict, conflict]);
    assert_eq!(two.move_away(&[0, 1]), [], "it is asked once");
    two.give_back(None);
    assert_eq!((two.layouts(), two.cluster.service.counts().recalled_layouts), (0, 0));
    assert_eq!([two.ask(0), two.ask(1)], [Ok(()), Ok(())]);
}

#[test]
fn a_client_that_forgot_all_layouts_has_ended_both_recalls() {
    let two = Two::new();
    two.move_away(&[0, 1]);
    let service = &two.cluster.service;
    service.layouts.wide_forgotten(two.client.key(), None, LayoutForm::Stripes);
    assert_eq!((two.layouts(), service.counts().fenced_layouts), (0, 2 * MANY));
    two.cluster.fence();
    assert_eq!([two.ask(0), two.ask(1)], [Ok(()), Ok(())]);
}

#[test]
fn a_client_without_recalls_of_all_gets_one_for_each_file() {
    let two = Two::new();
    two.move_away(&[0, 1]);
    let service = &two.cluster.service;
    service.layouts.wide_recall_failed(two.client.key(), None, LayoutForm::Stripes);
    let told = two.move_away(&[0, 1]);
    let single = told.iter().filter(|told| matches!(told, Told::RecallLayout(..))).count();
    assert_eq!((single, told.len()), (2 * MANY, 2 * MANY), "{told:?}");
    // The client returns no layout, so they are revoked.
    two.cluster.pass_with(&[&two.client], LEASE_NS + SECOND_NS);
    assert_eq!(two.layouts(), 0);
}
