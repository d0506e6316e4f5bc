//! The sizes of replies that carry a verifier and are wrapped.

use super::toy;
use crate::common::*;
use dafs_dat::connections::Origin;
use dafs_nfs::NfsGss;
use dafs_rpc::gss::{
    Accepted, Acceptor, Context, ContextLimits, Contexts, GssCall, InitAnswer, Job, PartialContext,
    accept,
};
use dafs_rpc::{Credential, GssService, Handled, LocalCall};
use dafs_service::{Flavour, Identities, LocalDirectory, Rule, Rules, UserOf};
use dafs_store::{MemoryOptions, MemoryStore};
use dafs_wire::nfs4::*;
use dafs_wire::rpc::CallHeader;
use dafs_wire::xdr::Decoder;
use std::sync::Arc;

const GETFH: Op<'static> = Op::Getfh(GetfhArgs);

struct Door(Arc<Contexts>);

impl Acceptor for Door {
    fn contexts(&self) -> &Arc<Contexts> {
        &self.0
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        toy::begin()
    }

    fn run(&self, _: Origin, job: Job) {
        job();
    }
}

/// A server that takes every flavour, and a context of its superuser.
fn world() -> (World, Arc<Context>) {
    let mut options = unsquashed();
    options.admits.flavours = vec![Flavour::Sys, Flavour::Krb5, Flavour::Krb5i, Flavour::Krb5p];
    let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let world = World::run_of(7, store, options, None);
    let rule =
        Rule { pattern: "root@R".parse().unwrap(), user: UserOf::Number(0, 0), trusted: false };
    let rules = Rules { rules: vec![rule], default_realm: None };
    let identities = Arc::new(Identities::new(rules, Box::new(LocalDirectory)));
    identities.resolve("root@R", world.now_ns).unwrap();
    let contexts = Contexts::new(ContextLimits::default());
    let message =
        toy::init(dafs_wire::rpc::gss::Credential::Init, &toy::ticket(0, 5, 200, "root@R"));
    let mut decoder = Decoder::new(&message);
    let header = CallHeader::decode(&mut decoder).unwrap();
    let (body, origin, now_ns) = (decoder.rest(), Origin::Sim(1), world.now_ns);
    let call = GssCall { message: &message, header: &header, body, origin, now_ns };
    let Accepted::Establish { establishing, token } = accept(&contexts, &call, || true) else {
        panic!("refused")
    };
    let InitAnswer::Complete { context, .. } = establishing.step(token, now_ns, toy::begin) else {
        panic!("not established")
    };
    let acceptor = Arc::new(Door(contexts));
    world.shared.accept_gss(Arc::new(NfsGss { acceptor, identities, owners: None }));
    (world, context)
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
    let (mut world, context) = world();
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
