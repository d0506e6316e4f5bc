//! Recalls of many layouts together, and word of devices that are gone.

use crate::common::*;
use crate::layouts::{Cluster, recall_of};
use crate::spread::{Asked, DEVICE};
use dafs_service::limits::LAYOUT_RECALLS_ONE_BY_ONE_MAX;
use dafs_service::{
    Client, FenceObject, FenceRight, FenceUpdate, LayoutMode, Opened, ServiceError,
};
use dafs_store::{DeviceKey, LayoutForm};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MANY: usize = LAYOUT_RECALLS_ONE_BY_ONE_MAX + 1;

/// Files that a client has layouts of.
fn files(cluster: &Cluster, client: &Arc<Client>, count: usize) -> Vec<Opened> {
    let open = |number| {
        let opened = cluster.world.open(client, &format!("f{number}"), BOTH).unwrap();
        cluster.get(client, &opened, true).unwrap();
        opened
    };
    (0..count).map(open).collect()
}

/// The store says that all of them lie elsewhere.
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
    let (world, service) = (&cluster.world, &cluster.world.service);
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
    // Neither of a file that it had a layout of nor of another one.
    let other = world.open(&one, "other", BOTH).unwrap();
    assert_eq!(error(cluster.get(&one, &other, true)), ServiceError::RecallConflict);
    assert_eq!(error(cluster.get(&one, &own[0], true)), ServiceError::RecallConflict);
    // It is not asked twice.
    move_away(&cluster, &own);
    world.pass_with(&[&one, &two], SECOND_NS);
    assert_eq!(world.ear.take(), []);
    let root = Some(&world.root);
    service.return_layouts(world.caller(&one), root, LayoutForm::Stripes, LayoutMode::Any);
    assert_eq!(service.counts().layouts, few.len());
    cluster.get(&one, &other, true).unwrap();
}

#[test]
fn a_few_of_many_layouts_are_recalled_one_by_one() {
    let cluster = Cluster::new();
    let one = cluster.world.nfs("a");
    let own = files(&cluster, &one, 3 * MANY);
    cluster.world.ear.take();
    move_away(&cluster, &own[..MANY]);
    cluster.world.pass_with(&[&one], SECOND_NS);
    let told = cluster.world.ear.take();
    assert_eq!(told.len(), MANY);
    assert!(told.iter().all(|told| matches!(told, Told::RecallLayout(..))), "{told:?}");
}

#[test]
fn layouts_given_back_together_wait_for_data_servers_a_short_while_or_not_at_all() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.world.service);
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
        service.return_layouts(world.patient(&one), of, LayoutForm::Stripes, LayoutMode::Any);
        assert_eq!(service.counts().layouts, 0);
        cluster.store.take_asked().len()
    };
    write(&own);
    assert_eq!(returned(Some(&world.root)), MANY);
    assert_eq!(service.counts().fenced_layouts, 0);
    // All of them go to whatever stores there are: that is not waited for where this is asked.
    write(&own);
    assert_eq!(returned(None), 0);
    world.fence();
    assert_eq!((cluster.store.take_asked().len(), service.counts().fenced_layouts), (MANY, 0));
    // One that takes its time is asked for two seconds, one that is not there once.
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
    let (world, service) = (&cluster.world, &cluster.world.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let own = files(&cluster, &one, MANY);
    own.iter().for_each(|opened| {
        cluster.vouch("a", opened, opened.state.reference(), true).unwrap();
    });
    cluster.store.away.store(true, Ordering::SeqCst);
    service.return_layouts(world.patient(&one), None, LayoutForm::Stripes, LayoutMode::Any);
    cluster.store.take_asked();
    // One question in a turn; it is another file's turn then.
    (0..MANY).for_each(|_| world.fence());
    assert_eq!(cluster.store.take_asked(), vec![Asked::Settle; MANY]);
    assert_eq!(service.counts().fenced_layouts, MANY);
    // What holds others back comes before.
    let other = world.open(&two, "g", BOTH).unwrap();
    let granted = cluster.get(&two, &other, true).unwrap().state;
    service.layout_forgotten(two.key(), granted);
    world.fence();
    assert_eq!(cluster.store.take_asked(), [Asked::Forget]);
    cluster.store.away.store(false, Ordering::SeqCst);
    world.fence();
    assert_eq!(cluster.store.take_asked().len(), MANY + 2);
    assert_eq!(service.counts().fenced_layouts, 0);
}

#[test]
fn who_has_forgotten_all_is_not_believed_by_data_servers_any_more() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.world.service);
    let one = world.nfs("a");
    let own = files(&cluster, &one, MANY);
    move_away(&cluster, &own);
    world.pass_with(&[&one], SECOND_NS);
    let handle = own[0].state.handle();
    service.layouts_forgotten(one.key(), Some(handle), LayoutForm::Copies);
    assert_eq!(service.counts().layouts, MANY, "of the other type");
    service.layouts_forgotten(one.key(), Some(handle), LayoutForm::Stripes);
    assert_eq!((service.counts().layouts, service.counts().fenced_layouts), (0, MANY));
    world.fence();
    cluster.get(&one, &own[0], true).unwrap();
}

#[test]
fn who_makes_nothing_of_such_a_recall_gets_one_for_each_file() {
    let cluster = Cluster::new();
    let (world, service) = (&cluster.world, &cluster.world.service);
    let one = world.nfs("a");
    let own = files(&cluster, &one, MANY);
    let states: Vec<_> =
        own.iter().map(|opened| cluster.get(&one, opened, true).unwrap().state).collect();
    move_away(&cluster, &own);
    world.pass_with(&[&one], SECOND_NS);
    world.ear.take();
    let handle = own[0].state.handle();
    service.layouts_recall_failed(one.key(), Some(handle), LayoutForm::Stripes);
    service.set_back_channel(&one, false);
    service.set_back_channel(&one, true);
    let told = world.ear.take();
    assert_eq!(told.len(), MANY);
    for (opened, state) in own.iter().zip(states) {
        assert!(told.contains(&recall_of(&one, opened, state)), "{told:?}");
    }
    // Nothing is given back, so it is taken away.
    world.pass_with(&[&one], LEASE_NS + SECOND_NS);
    assert_eq!(service.counts().layouts, 0);
}

#[test]
fn holders_hear_of_a_file_system_that_is_fenced() {
    let cluster = Cluster::new();
    let (world, one) = (&cluster.world, cluster.world.nfs("a"));
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
    let (world, service) = (&cluster.world, &cluster.world.service);
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let watch = |client, wanted| service.watch_device(client, DEVICE, LayoutForm::Stripes, wanted);
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
fn who_changes_his_mind_about_a_device_is_noted_once() {
    let cluster = Cluster::new();
    let one = cluster.world.nfs("a");
    let before = Arc::weak_count(&one);
    for _ in 0..1000 {
        for wanted in [true, false] {
            cluster.world.service.watch_device(&one, DEVICE, LayoutForm::Stripes, wanted);
        }
    }
    assert!(Arc::weak_count(&one) <= before + 1);
}
