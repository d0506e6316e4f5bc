//! The sizes of replies that carry a verifier and are wrapped.

use super::{ALL, toy, world};
use crate::common::*;
use dafs_dat::connections::Origin;
use dafs_rpc::gss::{Accepted, Context, Contexts, GssCall, InitAnswer, accept};
use dafs_rpc::{Credential, GssService, Handled, LocalCall};
use dafs_wire::nfs4::*;
use dafs_wire::rpc::CallHeader;
use dafs_wire::xdr::Decoder;
use std::sync::Arc;

const GETFH: Op<'static> = Op::Getfh(GetfhArgs);

/// A context of the superuser.
fn established(contexts: &Arc<Contexts>, now_ns: u64) -> Arc<Context> {
    let message =
        toy::init(dafs_wire::rpc::gss::Credential::Init, &toy::ticket(0, 5, 200, "root@R"));
    let mut decoder = Decoder::new(&message);
    let header = CallHeader::decode(&mut decoder).unwrap();
    let (body, origin) = (decoder.rest(), Origin::Sim(1));
    let call = GssCall { message: &message, header: &header, body, origin, now_ns };
    let Accepted::Establish { establishing, token } = accept(contexts, &call, || true) else {
        panic!("refused")
    };
    let InitAnswer::Complete { context, .. } = establishing.step(token, now_ns, toy::begin) else {
        panic!("not established")
    };
    context
}

/// Sends the next compound of a session under a context.
fn next(
    world: &mut World,
    session: &mut Session,
    (context, service): (&Arc<Context>, GssService),
    ops: &[Op<'_>],
) -> Answer {
    session.sequence += 1;
    let args = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let args = world.encode(&with_sequence(args, ops));
    let request = LocalCall {
        xid: 1000 + session.sequence,
        program: limits::PROGRAM,
        version: limits::VERSION,
        procedure: limits::PROCEDURE_COMPOUND,
        credential: Credential::Gss { context, service },
        args: &args,
        now_ns: world.now_ns,
    };
    match world.reactor.call(&mut world.handler, 1, request) {
        Handled::Reply(reply) => Answer(reply.to_bytes()),
        Handled::Later => Answer(world.finish().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// RFC 8881 18.36.3: the limit of a reply includes the RPC header with its verifier.
#[test]
fn verifier_and_wrapping_count_against_the_limit_of_a_reply() {
    const LIMIT: usize = 400;
    let (mut world, contexts) = world(&ALL);
    let context = established(&contexts, world.now_ns);
    let exchanged = world.exchange(0, b"client", 1);
    let fore = ChannelAttributes { response_bytes_max: LIMIT as u32, ..channel() };
    let args = create_session(exchanged.client_id, exchanged.sequence_id);
    let mut session = world.session(1, CreateSessionArgs { fore, ..args });
    let mut ops = vec![GETFH; 10];
    ops[0] = Op::Putrootfh(PutrootfhArgs);
    // The MIC has 17 bytes, the prefix and the length of the MIC 12, a token 17 and its length 4.
    let services = [
        (GssService::None, 24 + 20),
        (GssService::Integrity, 24 + 20 + 8 + 4 + 20),
        (GssService::Privacy, 24 + 20 + 4 + 24),
    ];
    for (service, beside) in services {
        let mut longest = 0;
        // The tag lets results come close to the limit.
        for tag in (0..64).step_by(4) {
            world.tag = &[b't'; 64][..tag];
            for count in 1..=ops.len() {
                let by = (&context, service);
                let answer = next(&mut world, &mut session, by, &ops[..count]);
                assert!(answer.0.len() + beside <= LIMIT, "{service:?}: {}", answer.0.len());
                if answer.status() == Status::Ok {
                    longest = longest.max(answer.0.len());
                }
            }
        }
        assert!(longest + beside > LIMIT - 12, "{service:?}: {longest}");
    }
}
