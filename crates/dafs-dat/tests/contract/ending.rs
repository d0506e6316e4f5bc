//! Promises about the end of a connection.

use super::{World, assert_flushed, drain_completions, pattern};
use dafs_dat::{Access, DisconnectReason, Operation, PostError, WorkStatus};

pub fn disconnect_hands_over_what_was_posted(world: &mut World) {
    let link = world.connect();
    const SIZE: usize = 3 << 20;
    let to = world.server.memory(SIZE, Access::LOCAL_WRITE);
    let from = world.client.memory(SIZE, Access::empty());
    from.fill(1);
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, SIZE)).unwrap();
    world.client.adapter.post_send(link.client, 2, &[from.region.local(0, SIZE)]).unwrap();
    world.client.adapter.disconnect(link.client);
    assert_eq!(world.server_done(1), WorkStatus::Ok(SIZE as u32));
    assert!(to.read(0, SIZE) == pattern(1, SIZE));
    assert_eq!(world.client_done(2), WorkStatus::Ok(SIZE as u32));
    assert_eq!(world.client_gone(link.client), DisconnectReason::Local);
    assert_eq!(world.server_gone(link.server), DisconnectReason::Peer);
}

pub fn a_disconnect_flushes_what_is_posted(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    let ours = world.client.memory(4096, Access::LOCAL_WRITE);
    let theirs = world.server.memory(4096, Access::LOCAL_WRITE);
    for i in 0..3 {
        let segment = ours.region.local(0, 64);
        world.client.adapter.post_receive(link.client, i, segment).unwrap();
        let segment = theirs.region.local(0, 64);
        world.server.adapter.post_receive(link.server, i, segment).unwrap();
    }
    world.server.adapter.disconnect(link.server);
    world.until(|world| {
        let over = |side: &super::Side| {
            side.events.iter().any(|e| matches!(e, dafs_dat::Event::Disconnected { .. }))
        };
        (over(&world.client) && over(&world.server)).then_some(())
    });
    for (side, endpoint) in [(&mut world.client, link.client), (&mut world.server, link.server)] {
        let (completions, over) = drain_completions(side, endpoint);
        assert!(over);
        for i in 0..3 {
            assert_flushed(&completions, Operation::Receive, i);
        }
        // In posting order.
        let order: Vec<_> = completions.iter().map(|c| c.work).collect();
        assert_eq!(order, [0, 1, 2]);
    }
}

pub fn an_abort_ends_both_sides(world: &mut World) {
    let link = world.connect();
    world.greet(link);
    const SIZE: usize = 16 << 20;
    let from = world.client.memory(SIZE, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let target = world.server.memory(SIZE, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let remote = target.remote(0, SIZE as u32);
    let all = from.region.local(0, SIZE);
    world.client.adapter.rdma_write(link.client, 1, &[all], remote).unwrap();
    world.client.adapter.rdma_read(link.client, 2, all, remote).unwrap();
    world.client.adapter.post_send(link.client, 3, &[from.region.local(0, 64)]).unwrap();
    world.client.adapter.post_receive(link.client, 4, from.region.local(0, 64)).unwrap();
    world.client.adapter.abort(link.client);
    world.poll();
    let (completions, over) = drain_completions(&mut world.client, link.client);
    assert!(over);
    assert_flushed(&completions, Operation::RdmaWrite, 1);
    assert_flushed(&completions, Operation::RdmaRead, 2);
    assert_flushed(&completions, Operation::Send, 3);
    assert_flushed(&completions, Operation::Receive, 4);
    let reason = world.server_gone(link.server);
    assert!(!matches!(reason, DisconnectReason::Local), "{reason}");
}

pub fn a_dead_endpoint_takes_no_work(world: &mut World) {
    let link = world.connect();
    let memory = world.client.memory(64, Access::LOCAL_WRITE);
    let segment = memory.region.local(0, 64);
    world.client.adapter.abort(link.client);
    world.client_gone(link.client);
    let adapter = &mut world.client.adapter;
    assert_eq!(adapter.post_send(link.client, 1, &[segment]), Err(PostError::NotConnected));
    assert_eq!(adapter.post_receive(link.client, 1, segment), Err(PostError::NotConnected));
    // A second call has no effect and no event.
    adapter.disconnect(link.client);
    adapter.abort(link.client);
    world.poll();
    let (completions, over) = drain_completions(&mut world.client, link.client);
    assert!(completions.is_empty() && !over);
}

pub fn others_live_on_when_one_ends(world: &mut World) {
    let one = world.connect();
    let other = world.connect();
    world.greet(one);
    world.greet(other);
    // One connection breaks a rule.
    let from = world.client.memory(64, Access::empty());
    world.client.adapter.post_send(one.client, 1, &[from.region.local(0, 64)]).unwrap();
    let reason = world.server_gone(one.server);
    assert!(matches!(reason, DisconnectReason::Protocol(_)) || !world.tells_whose_mistake);
    world.greet(other);
}
