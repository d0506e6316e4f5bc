//! Back channels: binding, callbacks, replies and their absence (RFC 8881 2.10.3.1, 18.33, 18.34,
//! 20).

use crate::common::*;
use dafs_rpc::{CallbackError, Handler};
use dafs_service::{ClientKey, Front, Handle, StateId, StateRef};
use dafs_store::{FileId, FsId};
use dafs_wire::nfs4::*;

const HANDLE: Handle = Handle { fs: FsId([1; 16]), file: FileId([2; 48]) };

fn state(number: u64) -> StateRef {
    StateRef { id: StateId(number), seqid: 1 }
}

fn recall(world: &mut World, session: &Session, number: u64) {
    world.shared.recall(ClientKey(session.client_id), &HANDLE, state(number), false);
    world.collect();
}

fn disconnect(world: &mut World, number: u32) {
    let connection = world.reactor.connection(number).id();
    world.handler.disconnected(connection);
    world.collect();
}

fn bind(session: &Session, direction: ChannelFromClient) -> Op<'static> {
    let session_id = session.id;
    Op::BindConnToSession(BindConnToSessionArgs { session_id, direction, use_rdma: true })
}

fn flags(world: &mut World, session: &mut Session) -> SequenceStatus {
    let answer = world.next(session, &[]);
    let ResultBody::Sequence(result) = answer.body(0) else { panic!() };
    result.status
}

#[test]
fn a_recall_goes_over_the_connection_that_made_the_session() {
    let (mut world, session) = World::with_client();
    recall(&mut world, &session, 5);
    let [(connection, call)] = &world.back_calls[..] else { panic!() };
    assert_eq!(*connection, world.reactor.connection(1).id().to_u64());
    assert_eq!((call.program, call.version, call.procedure), (0x4000_0000, 1, 1));
    assert_eq!(call.auth_sys, None);
    let args = back_args(call);
    assert_eq!((args.session_id, args.sequence_id, args.slot_id), (session.id, 1, 0));
    let CbOp::Recall(recall) = back_op(call) else { panic!() };
    assert_eq!((recall.stateid.seqid, recall.truncate), (1, false));
    assert_eq!(recall.handle.len(), 64);
}

#[test]
fn slots_are_used_again_with_the_next_sequence() {
    let (mut world, session) = World::with_client();
    recall(&mut world, &session, 5);
    recall(&mut world, &session, 6);
    let calls = std::mem::take(&mut world.back_calls);
    assert_eq!(back_args(&calls[1].1).slot_id, 1);
    assert_eq!(back_args(&calls[1].1).highest_slot_id, 1);
    world.answer_back(&calls[0].1, Status::Ok, Status::Ok);
    recall(&mut world, &session, 7);
    let args = back_args(&world.back_calls[0].1);
    assert_eq!((args.slot_id, args.sequence_id), (0, 2));
}

#[test]
fn a_callback_without_a_slot_waits() {
    let (mut world, session) = World::with_client();
    (0..20).for_each(|number| recall(&mut world, &session, number + 1));
    // The client accepts eight at once.
    assert_eq!(world.back_calls.len(), 8);
    let calls = std::mem::take(&mut world.back_calls);
    world.answer_back(&calls[3].1, Status::Ok, Status::Ok);
    assert_eq!(world.back_calls.len(), 1);
    assert_eq!(back_args(&world.back_calls[0].1).slot_id, 3);
}

#[test]
fn an_unanswered_call_goes_over_another_connection_under_the_same_sequence() {
    let (mut world, session) = World::with_client();
    let answer = world.send(2, 0, &[bind(&session, ChannelFromClient::BackOrBoth)]);
    let ResultBody::BindConnToSession(bound) = answer.body(0) else { panic!() };
    assert_eq!((bound.direction, bound.use_rdma), (ChannelFromServer::Both, false));
    recall(&mut world, &session, 5);
    let (connection, call) = world.back_calls.pop().unwrap();
    assert_eq!(connection, world.reactor.connection(2).id().to_u64());
    let id = world.reactor.connection(2).id();
    world.handler.back_reply(id, call.token, Err(CallbackError::TimedOut));
    world.collect();
    let (connection, again) = world.back_calls.pop().unwrap();
    assert_eq!(connection, world.reactor.connection(1).id().to_u64());
    assert_eq!(again.args, call.args);
    assert_ne!(again.token, call.token);
    // A late reply to the first does not count.
    world.answer_back(&call, Status::Ok, Status::Ok);
    recall(&mut world, &session, 6);
    assert_eq!(back_args(&world.back_calls[0].1).slot_id, 1);
}

#[test]
fn a_lost_path_is_told_and_mended() {
    let (mut world, mut session) = World::with_client();
    assert_eq!(flags(&mut world, &mut session), SequenceStatus::empty());
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    disconnect(&mut world, 1);
    let down = SequenceStatus::CB_PATH_DOWN | SequenceStatus::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(&mut world, &mut session), down);
    let answer = world.send(3, 0, &[bind(&session, ChannelFromClient::ForeOrBoth)]);
    assert_eq!(answer.status(), Status::Ok);
    assert_eq!(flags(&mut world, &mut session), SequenceStatus::empty());
    // The call under way keeps its slot and sequence, so the client recognises it.
    assert_eq!(world.back_calls[0].1.args, call.args);
}

#[test]
fn a_client_that_comes_back_over_another_connection_is_called_there() {
    let (mut world, mut session) = World::with_client();
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    let mut flags_over = |world: &mut World, connection| {
        session.sequence += 1;
        let ops = with_sequence(session.sequence_args(), &[]);
        let answer = world.send(connection, 0, &ops);
        let ResultBody::Sequence(result) = answer.body(0) else { panic!() };
        result.status
    };
    // The old connection is not known to be dead, and several may be used at a time.
    assert_eq!(flags_over(&mut world, 2), SequenceStatus::empty());
    world.now_ns += 3 * SECOND;
    assert_eq!(flags_over(&mut world, 2), SequenceStatus::CB_PATH_DOWN_SESSION);
    let bind_session = Op::BindConnToSession(BindConnToSessionArgs {
        session_id: back_args(&call).session_id,
        direction: ChannelFromClient::ForeOrBoth,
        use_rdma: false,
    });
    assert_eq!(world.send(2, 0, &[bind_session]).status(), Status::Ok);
    let (connection, again) = world.back_calls.pop().unwrap();
    assert_eq!(connection, world.reactor.connection(2).id().to_u64());
    assert_eq!(again.args, call.args);
    assert_eq!(flags_over(&mut world, 2), SequenceStatus::empty());
}

#[test]
fn the_other_session_takes_over() {
    let (mut world, session) = World::with_client();
    let args = create_session(session.client_id, session.created.sequence + 1);
    let mut second = world.session(2, args);
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    let first_used = back_args(&call).session_id;
    assert_eq!(first_used, session.id);
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: session.id });
    assert_eq!(world.next(&mut second, &[destroy]).status(), Status::Ok);
    let (_, call) = world.back_calls.pop().unwrap();
    assert_eq!(back_args(&call).session_id, second.id);
    assert_eq!(flags(&mut world, &mut second), SequenceStatus::empty());
}

#[test]
fn a_session_without_connection_leaves_its_calls_to_another() {
    let (mut world, session) = World::with_client();
    let args = create_session(session.client_id, session.created.sequence + 1);
    let mut second = world.session(2, args);
    recall(&mut world, &session, 5);
    let (_, first) = world.back_calls.pop().unwrap();
    assert_eq!(back_args(&first).session_id, session.id);
    disconnect(&mut world, 1);
    let (_, call) = world.back_calls.pop().unwrap();
    assert_eq!(back_args(&call).session_id, second.id);
    assert_eq!(back_op(&call), back_op(&first));
    assert_eq!(flags(&mut world, &mut second), SequenceStatus::empty());
    world.answer_back(&call, Status::Ok, Status::Ok);
    // The slot of the first session is free again only when its own call has been answered.
    world.send(3, 0, &[bind(&session, ChannelFromClient::ForeOrBoth)]);
    let (_, again) = world.back_calls.pop().unwrap();
    assert_eq!(again.args, first.args);
    world.answer_back(&again, Status::Ok, Status::Delay);
    world.tick(2 * SECOND);
    assert!(world.back_calls.is_empty());
}

/// The recall was under way when no other session could take it over.
#[test]
fn a_session_that_comes_later_takes_over_what_another_cannot_say() {
    let (mut world, session) = World::with_client();
    recall(&mut world, &session, 5);
    let (_, first) = world.back_calls.pop().unwrap();
    disconnect(&mut world, 1);
    assert!(world.back_calls.is_empty());
    let args = create_session(session.client_id, session.created.sequence + 1);
    let second = world.session(2, args);
    let (_, call) = world.back_calls.pop().expect("the recall");
    assert_eq!(back_args(&call).session_id, second.id);
    assert_eq!(back_op(&call), back_op(&first));
}

#[test]
fn a_client_that_puts_off_is_asked_again_and_not_for_ever() {
    let (mut world, session) = World::with_client();
    recall(&mut world, &session, 5);
    let mut asked = 0;
    while let Some((_, call)) = world.back_calls.pop() {
        asked += 1;
        assert_eq!(back_args(&call).sequence_id, asked);
        world.answer_back(&call, Status::Ok, Status::Delay);
        assert!(world.back_calls.is_empty());
        world.tick(2 * SECOND);
    }
    assert_eq!(asked, 1 + dafs_nfs::limits::BACK_TRIES_MAX);
}

#[test]
fn a_client_may_hear_of_its_session_after_the_callback_and_not_much_later() {
    let (mut world, mut session) = World::with_client();
    recall(&mut world, &session, 5);
    let mut asked = 0;
    while let Some((_, call)) = world.back_calls.pop() {
        asked += 1;
        // The call was not executed, so the sequence id stays.
        assert_eq!(back_args(&call).sequence_id, 1);
        assert_eq!(flags(&mut world, &mut session), SequenceStatus::empty());
        world.answer_back(&call, Status::BadSession, Status::Ok);
        world.tick(2 * SECOND);
    }
    assert_eq!(asked, 1 + dafs_nfs::limits::BACK_TRIES_MAX);
    let down = SequenceStatus::CB_PATH_DOWN | SequenceStatus::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(&mut world, &mut session), down);
}

#[test]
fn a_client_that_counts_anew_or_answers_nonsense_is_understood() {
    let (mut world, mut session) = World::with_client();
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    world.answer_back(&call, Status::Ok, Status::Ok);
    recall(&mut world, &session, 6);
    let (_, call) = world.back_calls.pop().unwrap();
    world.answer_back(&call, Status::SeqMisordered, Status::Ok);
    world.tick(2 * SECOND);
    let (_, call) = world.back_calls.pop().unwrap();
    assert_eq!(back_args(&call).sequence_id, 1);
    let connection = world.reactor.connection(1).id();
    world.handler.back_reply(connection, call.token, Ok(b"nonsense"));
    assert_eq!(flags(&mut world, &mut session), SequenceStatus::BACKCHANNEL_FAULT);
    // A reply without a call, and a second reply to one.
    world.handler.back_reply(connection, call.token, Ok(b""));
    world.handler.back_reply(connection, 99, Ok(b""));
}

#[test]
fn back_channel_control_changes_program_and_credential() {
    let (mut world, mut session) = World::with_client();
    let sys = AuthSysParameters { stamp: 1, machine: b"server", uid: 7, gid: 8, groups: vec![9] };
    let control = Op::BackchannelCtl(BackchannelCtlArgs {
        callback_program: 0x4000_1234,
        security: vec![CallbackSecurity::Sys(sys)],
    });
    assert_eq!(world.next(&mut session, &[control]).status(), Status::Ok);
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    assert_eq!(call.program, 0x4000_1234);
    assert_eq!(call.auth_sys.unwrap().len(), 32);
}

#[test]
fn notices_of_locks_name_the_owner() {
    let (mut world, session) = World::with_client();
    world.shared.lock_available(ClientKey(session.client_id), &HANDLE, b"owner");
    world.collect();
    let (_, call) = world.back_calls.pop().unwrap();
    let CbOp::NotifyLock(notice) = back_op(&call) else { panic!() };
    assert_eq!(notice.owner, StateOwner { client_id: session.client_id, owner: b"owner" });
}

#[test]
fn clients_without_a_back_channel_hear_nothing() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let flags_none = CreateSessionFlags::empty();
    let args = create_session(client.client_id, client.sequence_id);
    let mut session = world.session(1, CreateSessionArgs { flags: flags_none, ..args });
    recall(&mut world, &session, 5);
    assert!(world.back_calls.is_empty());
    assert_eq!(flags(&mut world, &mut session), SequenceStatus::empty());
    recall(&mut world, &Session { client_id: 77, ..session }, 5);
    assert!(world.back_calls.is_empty());
}

#[test]
fn binding_needs_a_session_and_a_direction() {
    let (mut world, session) = World::with_client();
    let stranger = Session { id: SessionId([3; 16]), ..session.clone() };
    for (op, status) in [
        (bind(&stranger, ChannelFromClient::Fore), Status::BadSession),
        (bind(&session, ChannelFromClient::Other(9)), Status::Inval),
        (bind(&session, ChannelFromClient::Fore), Status::Ok),
    ] {
        assert_eq!(world.send(4, 0, &[op]).status(), status);
    }
    // Connection 4 was bound to the fore channel only.
    recall(&mut world, &session, 5);
    assert_eq!(world.back_calls[0].0, world.reactor.connection(1).id().to_u64());
}

#[test]
fn a_client_that_does_not_read_is_called_again_later() {
    let (mut world, session) = World::with_client();
    recall(&mut world, &session, 5);
    let (_, call) = world.back_calls.pop().unwrap();
    let connection = world.reactor.connection(1).id();
    world.handler.back_reply(connection, call.token, Err(CallbackError::TooMany));
    world.collect();
    assert!(world.back_calls.is_empty(), "it would be refused again, and so on without end");
    world.tick(2 * SECOND);
    let (_, again) = world.back_calls.pop().unwrap();
    assert_eq!(again.args, call.args);
}
