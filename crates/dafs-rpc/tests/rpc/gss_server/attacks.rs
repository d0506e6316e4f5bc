//! Attacks on a server with contexts of RPCSEC_GSS. None may be carried out, hurt other callers, or
//! cause a panic.

use super::toy::*;
use dafs_rpc::gss::*;
use dafs_wire::rpc::gss::{Credential, InitResults, Protected, SEQUENCE_MAX, Service};
use dafs_wire::rpc::{AuthFlavor, AuthStatus};
use dafs_wire::xdr::Encode;
use proptest::prelude::*;

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];
pub(super) const CREDENTIAL_PROBLEM: Answer = Answer::Refused(AuthStatus::GssCredentialProblem);
const CONTEXT_PROBLEM: Answer = Answer::Refused(AuthStatus::GssContextProblem);

pub(super) fn server() -> Server {
    Server::new(ContextLimits::default())
}

/// A call that must be carried out, with its results checked.
pub(super) fn call(server: &Server, client: &Client, sequence: u32, service: Service, args: &[u8]) {
    let before = server.executed();
    let answer = server.receive(&client.call(sequence, service, args));
    let Answer::Served(reply) = answer else { panic!("{answer:?}") };
    assert_eq!(client.results(sequence, service, &reply), args);
    assert_eq!(server.executed(), before + 1);
}

#[test]
fn calls_of_all_services_are_carried_out() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    for (sequence, service) in (1..).zip(SERVICES) {
        call(&server, &client, sequence, service, b"arguments...");
    }
    // NULL without arguments; the sequence number alone is protected.
    for (sequence, service) in (4..).zip(SERVICES) {
        call(&server, &client, sequence, service, b"");
    }
    let executed = server.executed.lock();
    assert!(executed.iter().all(|(caller, ..)| caller == "anna"));
    assert_eq!(executed[2].1, Service::Privacy);
}

/// Attack 1.
#[test]
fn verifiers_of_others_are_refused() {
    let server = server();
    let (victim, attacker) =
        (Client::new(&server, 5, 100, "anna"), Client::new(&server, 6, 100, "eve"));
    let credential = Credential::Data(victim.fields(1, Service::None));
    let lens = [0, 1, 16, 17, 18, 400];
    for flavor in [AuthFlavor::NONE, AuthFlavor::SYS, AuthFlavor::RPCSEC_GSS] {
        for len in lens {
            let forged = message(1, credential, b"evil", |_| (flavor, vec![0; len]));
            assert_eq!(server.receive(&forged), CREDENTIAL_PROBLEM);
        }
    }
    assert_eq!(server.receive(&attacker.message(1, credential, b"evil")), CREDENTIAL_PROBLEM);
    // A good MIC with another flavor is none.
    let forged = message(1, credential, b"evil", |covered| {
        let mut mic = vec![0; victim.keys.mic_bytes()];
        victim.keys.mic(&[covered], &mut mic);
        (AuthFlavor::SYS, mic)
    });
    assert_eq!(server.receive(&forged), CREDENTIAL_PROBLEM);
    assert_eq!(server.executed(), 0);
    assert_eq!(server.contexts.counts().unverified as usize, 3 * lens.len() + 2);
    // The window has not moved.
    call(&server, &victim, 1, Service::None, b"args");
}

/// Attack 2.
#[test]
fn replays_are_carried_out_once_and_close_the_connection() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    for (sequence, service) in (1..).zip(SERVICES) {
        let message = client.call(sequence, service, b"once");
        assert!(matches!(server.receive(&message), Answer::Served(_)));
        for host in [1, 2] {
            let answer = server.receive_from(&message, Origin::Sim(host));
            assert_eq!(answer, Answer::Closed);
        }
    }
    assert_eq!((server.executed(), server.contexts.counts().replayed), (3, 6));
    // So does a number below the window, seen or not.
    let late = client.call(4, Service::None, b"late");
    call(&server, &client, 4 + WINDOW, Service::None, b"args");
    assert_eq!(server.receive(&late), Answer::Closed);
    // The connection is closed, and the context goes on.
    call(&server, &client, 5 + WINDOW, Service::None, b"args");
}

#[test]
fn of_replays_on_several_reactors_one_is_carried_out() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    let calls: Vec<_> =
        (0..500).map(|sequence| client.call(sequence, Service::Integrity, b"once")).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for call in &calls {
                    assert!(matches!(server.receive(call), Answer::Served(_) | Answer::Closed));
                }
            });
        }
    });
    assert_eq!(server.executed(), calls.len());
}

/// Attack 3.
#[test]
fn a_forged_number_moves_no_window() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    call(&server, &client, 1, Service::None, b"args");
    for sequence in [5000, SEQUENCE_MAX, SEQUENCE_MAX + 1, u32::MAX] {
        let credential = Credential::Data(client.fields(sequence, Service::None));
        let forged = message(1, credential, b"evil", |_| (AuthFlavor::RPCSEC_GSS, vec![0; 17]));
        assert_eq!(server.receive(&forged), CREDENTIAL_PROBLEM);
    }
    call(&server, &client, 2, Service::None, b"args");
    // The holder of the keys learns that the numbers are used up, and the context goes on.
    let beyond = client.call(SEQUENCE_MAX + 1, Service::None, b"args");
    assert_eq!(server.receive(&beyond), CONTEXT_PROBLEM);
    call(&server, &client, 3, Service::None, b"args");
    call(&server, &client, SEQUENCE_MAX, Service::None, b"args");
}

/// Attack 4.
#[test]
fn a_lowered_service_is_told_and_lowers_no_token() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    // A program that wants more sees the service of each call.
    call(&server, &client, 1, Service::Privacy, b"args");
    call(&server, &client, 2, Service::None, b"args");
    call(&server, &client, 3, Service::Integrity, b"args");
    let services: Vec<_> = server.executed.lock().iter().map(|call| call.1).collect();
    assert_eq!(services, [Service::Privacy, Service::None, Service::Integrity]);
    // The body of one service under the header of another.
    let mut sequence = 4;
    for stated in [Service::Integrity, Service::Privacy] {
        for made in SERVICES.into_iter().filter(|made| *made != stated) {
            let body = client.body(sequence, made, b"args");
            let credential = Credential::Data(client.fields(sequence, stated));
            assert_eq!(server.receive(&client.message(1, credential, &body)), Answer::Garbage);
            sequence += 1;
        }
    }
    // A token without its sealed bit.
    let mut body = client.body(sequence, Service::Privacy, b"args");
    body[4] &= !2;
    let credential = Credential::Data(client.fields(sequence, Service::Privacy));
    assert_eq!(server.receive(&client.message(1, credential, &body)), Answer::Garbage);
    assert_eq!(server.executed(), 3);
}

/// Attack 5.
#[test]
fn a_body_belongs_to_its_header() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    let mut sequence = 1u32;
    for service in [Service::Integrity, Service::Privacy] {
        for distance in [1, 2, 0x5555_5555, u32::MAX] {
            let body = client.body(sequence.wrapping_add(distance), service, b"evil");
            let credential = Credential::Data(client.fields(sequence, service));
            assert_eq!(server.receive(&client.message(1, credential, &body)), Answer::Garbage);
            sequence += 1;
        }
    }
    assert_eq!(server.executed(), 0);
    call(&server, &client, sequence, Service::Privacy, b"args");
}

/// Attack 6: every bit of a call, and every end.
#[test]
fn damaged_calls_are_not_carried_out() {
    let args = b"arguments...";
    for service in SERVICES {
        let server = server();
        let client = Client::new(&server, 5, 100, "anna");
        let whole = client.call(1, service, args);
        let header_bytes = whole.len() - client.body(1, service, args).len();
        // Without protection, anybody may change the arguments.
        let protected_bytes = if service == Service::None { header_bytes } else { whole.len() };
        for bit in 0..protected_bytes * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let answer = server.receive(&damaged);
            // The verifier ends with padding, which means nothing. It lets the call through, whose
            // number is used up from then on.
            match bit / 8 {
                at if at < header_bytes - 3 => assert!(
                    matches!(answer, Answer::Refused(_) | Answer::NotGss),
                    "{service:?}, bit {bit}: {answer:?}"
                ),
                at if at == header_bytes - 3 && bit % 8 == 0 => {
                    assert!(matches!(answer, Answer::Served(_)))
                }
                _ => assert_eq!(answer, Answer::Closed),
            }
        }
        assert_eq!(*server.executed.lock(), [("anna".to_owned(), service, args.to_vec())]);
        for end in 0..protected_bytes {
            let answer = server.receive(&whole[..end]);
            assert!(matches!(answer, Answer::NotGss | Answer::Closed), "cut to {end}: {answer:?}");
        }
    }
}

proptest! {
    /// Attack 6: a body with a header of its own, and tokens of any length.
    #[test]
    fn damaged_bodies_are_garbage(
        service in prop_oneof![Just(Service::Integrity), Just(Service::Privacy)],
        args in prop::collection::vec(any::<u8>(), 0..12).prop_map(|words| words.repeat(4)),
        damage in (any::<prop::sample::Index>(), 1u8..=255),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let server = server();
        let client = Client::new(&server, 5, 100, "anna");
        let sent = |sequence: u32, body: &[u8]| {
            let credential = Credential::Data(client.fields(sequence, service));
            let mut message = client.message(1, credential, &[]);
            message.extend_from_slice(body);
            server.receive(&message)
        };
        let body = client.body(1, service, &args);
        let mut damaged = body.clone();
        let at = damage.0.index(body.len());
        damaged[at] ^= damage.1;
        let answer = sent(1, &damaged);
        // The last bytes may be padding.
        prop_assert!(answer == Answer::Garbage || at >= body.len() - 3);
        let body = client.body(2, service, &args);
        prop_assert_eq!(sent(2, &body[..cut.index(body.len())]), Answer::Garbage);
        prop_assert_eq!(sent(3, &noise), Answer::Garbage);
        let body = client.body(4, service, &args);
        prop_assert!(matches!(sent(4, &body), Answer::Served(_)));
    }

    /// No message at all does harm.
    #[test]
    fn any_message_has_an_answer(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        words in prop::collection::vec(prop_oneof![0u32..8, any::<u32>()], 0..40),
    ) {
        let server = server();
        server.receive(&bytes);
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let header = [77u32, 0, 2, 100_003, 4, 0, 6].map(u32::to_be_bytes).concat();
        server.receive(&[header, words].concat());
        prop_assert_eq!(server.executed(), 0);
    }
}

/// Attack 7.
#[test]
fn tokens_of_the_server_are_not_taken_back() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    let Answer::Served(reply) = server.receive(&client.call(1, Service::Integrity, b"args")) else {
        panic!("not carried out")
    };
    let (verifier, body) = accepted(&reply);
    // The MIC of the reply's number covers these four bytes; the body's MIC a whole body.
    let credential = Credential::Data(client.fields(2, Service::Integrity));
    let forged = message(1, credential, body, |_| (AuthFlavor::RPCSEC_GSS, verifier.to_vec()));
    assert_eq!(server.receive(&forged), CREDENTIAL_PROBLEM);
    // The direction alone decides: these are MICs of the very bytes.
    let mut own = Client { keys: ToyKeys::acceptor(5), handle: client.handle.clone() };
    assert_eq!(server.receive(&own.call(2, Service::None, b"args")), CREDENTIAL_PROBLEM);
    let credential = Credential::Data(client.fields(2, Service::Integrity));
    let reflected = client.message(1, credential, &own.body(2, Service::Integrity, b"args"));
    assert_eq!(server.receive(&reflected), Answer::Garbage);
    own.keys = ToyKeys::initiator(5);
    call(&server, &own, 3, Service::Integrity, b"args");
}

/// Attack 9.
#[test]
fn contexts_are_destroyed_by_their_owner_alone() {
    let server = server();
    let (victim, attacker) =
        (Client::new(&server, 5, 100, "anna"), Client::new(&server, 6, 100, "eve"));
    let credential = Credential::Destroy(victim.fields(1, Service::None));
    let forged = message(0, credential, &[], |_| (AuthFlavor::RPCSEC_GSS, vec![0; 17]));
    assert_eq!(server.receive(&forged), CREDENTIAL_PROBLEM);
    assert_eq!(server.receive(&attacker.message(0, credential, &[])), CREDENTIAL_PROBLEM);
    // Not by a call of another procedure either.
    let bad = Answer::Refused(AuthStatus::BadCredential);
    assert_eq!(server.receive(&victim.message(1, credential, &[])), bad);
    call(&server, &victim, 1, Service::None, b"args");
    let Answer::Destroyed(reply) = server.receive(&victim.destroy(2)) else { panic!("kept") };
    let (verifier, results) = accepted(&reply);
    victim.keys.verify(&[&2u32.to_be_bytes()], verifier).unwrap();
    assert_eq!(results, b"");
    // A replay finds no context.
    assert_eq!(server.receive(&victim.destroy(2)), CREDENTIAL_PROBLEM);
    let counts = server.contexts.counts();
    assert_eq!((counts.contexts, counts.destroyed), (1, 1));
}

/// Attack 9.
#[test]
fn handles_are_not_guessed() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    for bit in 0..client.handle.len() * 8 {
        let mut handle = client.handle.clone();
        handle[bit / 8] ^= 1 << (bit % 8);
        // The guesser even has the keys.
        let guess = Client { keys: ToyKeys::initiator(5), handle };
        assert_eq!(server.receive(&guess.call(1, Service::None, b"evil")), CREDENTIAL_PROBLEM);
    }
    for len in (0..16).chain([17, 380]) {
        let handle = client.handle.iter().copied().cycle().take(len).collect();
        let guess = Client { keys: ToyKeys::initiator(5), handle };
        assert_eq!(server.receive(&guess.call(1, Service::None, b"evil")), CREDENTIAL_PROBLEM);
    }
    call(&server, &client, 1, Service::None, b"args");
}

/// Attack 11.
#[test]
fn contexts_end() {
    let server = server();
    let [short, long] = [10, 100].map(|seconds| Client::new(&server, 5, seconds, "anna"));
    server.pass(69);
    call(&server, &short, 1, Service::None, b"args");
    server.pass(1);
    // A minute after the ticket.
    assert_eq!(server.receive(&short.call(2, Service::None, b"args")), CREDENTIAL_PROBLEM);
    assert_eq!(server.receive(&short.destroy(3)), CREDENTIAL_PROBLEM);
    call(&server, &long, 1, Service::None, b"args");
    let counts = server.contexts.counts();
    assert_eq!((counts.contexts, counts.expired, counts.unknown), (1, 1, 2));
    server.contexts.tick(159 * SECOND);
    assert_eq!(server.contexts.counts().contexts, 1);
    server.contexts.tick(160 * SECOND);
    let counts = server.contexts.counts();
    assert_eq!((counts.contexts, counts.expired), (0, 2));
}

/// Attack 11.
#[test]
fn a_call_under_way_outlives_its_context() {
    for is_destroyed in [true, false] {
        a_call_under_way_is_finished(is_destroyed);
    }
}

/// Ends the context of a call that was accepted, by its client or by the end of its ticket.
fn a_call_under_way_is_finished(is_destroyed: bool) {
    let server = server();
    let client = Client::new(&server, 5, 10, "anna");
    let bytes = client.call(1, Service::Privacy, b"args");
    let mut decoder = dafs_wire::xdr::Decoder::new(&bytes);
    let header = dafs_wire::rpc::CallHeader::decode(&mut decoder).unwrap();
    let (body, origin) = (decoder.rest(), Origin::Sim(1));
    let call = GssCall { message: &bytes, header: &header, body, origin, now_ns: 0 };
    let Accepted::Serve(verified) = accept(&server.contexts, &call, || true) else {
        panic!("refused")
    };
    if is_destroyed {
        assert!(matches!(server.receive(&client.destroy(2)), Answer::Destroyed(_)));
    } else {
        server.pass(70);
        server.contexts.tick(70 * SECOND);
    }
    assert_eq!(server.receive(&client.call(3, Service::None, b"args")), CREDENTIAL_PROBLEM);
    assert_eq!(server.contexts.counts().contexts, 0);
    client.keys.verify(&[&1u32.to_be_bytes()], verified.verifier().auth().body).unwrap();
    let Ok(Body::Sealed(token)) = verified.body(body) else { panic!("not sealed") };
    let mut plain = vec![0; token.len()];
    let place = verified.open(token, &mut plain).unwrap();
    assert_eq!(plain[place], *b"args");
    let mut protected = vec![0; verified.protected_bytes(4)];
    verified.seal(&[b"done"], &mut protected).unwrap();
    let verifier = verified.verifier();
    let front = dafs_wire::rpc::ReplyHeader {
        xid: header.xid,
        status: dafs_wire::rpc::ReplyStatus::Accepted {
            verifier: verifier.auth(),
            status: dafs_wire::rpc::AcceptStatus::Success,
        },
    };
    let reply = [front.encoded(), protected].concat();
    assert_eq!(client.results(1, Service::Privacy, &reply), b"done");
}

#[test]
fn credentials_have_the_answers_of_the_table() {
    let server = server();
    let client = Client::new(&server, 5, 100, "anna");
    let refused = |status| Answer::Refused(status);
    let fields = client.fields(1, Service::None);
    let with = |at: usize, value: u32| {
        let mut bytes = client.message(0, Credential::Data(fields), b"");
        // The body of the credential begins after eight words.
        bytes[32 + 4 * at..36 + 4 * at].copy_from_slice(&value.to_be_bytes());
        server.receive(&bytes)
    };
    for version in [0, 2, 3, 1024] {
        assert_eq!(with(0, version), refused(AuthStatus::BadCredential));
    }
    for procedure in [4, 5, 1024] {
        assert_eq!(with(1, procedure), refused(AuthStatus::RejectedCredential));
    }
    assert_eq!(with(1, 1), refused(AuthStatus::BadCredential), "INIT with a handle");
    for service in [0, 4, 5, 1024] {
        assert_eq!(with(3, service), refused(AuthStatus::BadCredential));
    }
    assert_eq!(with(4, 20), refused(AuthStatus::BadCredential));
    // Requests for a context: another procedure, a verifier, no token, an unknown handle.
    let none = |_: &[u8]| (AuthFlavor::NONE, Vec::new());
    let bad = message(1, Credential::Init, b"\0\0\0\0", none);
    assert_eq!(server.receive(&bad), refused(AuthStatus::BadCredential));
    let bad = message(0, Credential::Init, b"\0\0\0\0", |_| (AuthFlavor::NONE, vec![0; 4]));
    assert_eq!(server.receive(&bad), refused(AuthStatus::BadVerifier));
    let bad = client.message(0, Credential::Init, b"\0\0\0\0");
    assert_eq!(server.receive(&bad), refused(AuthStatus::BadVerifier));
    assert_eq!(server.receive(&message(0, Credential::Init, b"", none)), Answer::Garbage);
    let go_on = init(Credential::ContinueInit { handle: &client.handle }, b"");
    assert_eq!(server.receive(&go_on), CREDENTIAL_PROBLEM);
    let Protected { handle, .. } = fields;
    assert_eq!(handle.len(), Handle::BYTES);
    assert_eq!(server.executed(), 0);
}

#[test]
fn a_context_of_several_legs_is_taken_by_one_thread_at_a_time() {
    let server = server();
    let first = init(Credential::Init, &ticket(2, 5, 100, "anna"));
    let Answer::Init(reply) = server.receive(&first) else { panic!() };
    let (verifier, results) = accepted(&reply);
    assert!(verifier.is_empty(), "there are no keys yet");
    let InitResults::Continue { handle, token, .. } = init_results(results) else { panic!() };
    assert_eq!(token, b"more");
    // It is no context yet, also for somebody who has the keys.
    let early = Client { keys: ToyKeys::initiator(5), handle: handle.to_vec() };
    assert_eq!(server.receive(&early.call(1, Service::None, b"args")), CREDENTIAL_PROBLEM);
    let go_on = |handle: &[u8]| {
        server.queue(&init(Credential::ContinueInit { handle }, b""), Origin::Sim(1))
    };
    for bit in 0..handle.len() * 8 {
        let mut guess = handle.to_vec();
        guess[bit / 8] ^= 1 << (bit % 8);
        assert!(go_on(&guess).is_none());
    }
    let taken = go_on(handle).unwrap();
    assert!(go_on(handle).is_none());
    let InitAnswer::Continue { .. } = taken.step(b"2", 0, begin) else { panic!() };
    let taken = go_on(handle).unwrap();
    let InitAnswer::Complete { context, .. } = taken.step(b"3", 0, begin) else { panic!() };
    assert_eq!(context.handle().to_bytes(), handle);
    call(&server, &early, 1, Service::None, b"args");
    assert!(go_on(handle).is_none());
    let counts = server.contexts.counts();
    assert_eq!((counts.half_open, counts.queued, counts.established), (0, 0, 1));
}

#[test]
fn a_refusal_of_the_mechanism_has_its_statuses() {
    let server = server();
    let Answer::Init(reply) = server.receive(&init(Credential::Init, b"\0")) else { panic!() };
    let (verifier, results) = accepted(&reply);
    assert!(verifier.is_empty());
    let failed = InitResults::Failed { major: 9 << 16, minor: 7 };
    assert_eq!(init_results(results), failed);
    assert_eq!(failed.encoded(), results);
    let counts = server.contexts.counts();
    assert_eq!((counts.failed, counts.half_open, counts.contexts), (1, 0, 0));
    // Nor may a mechanism fail with the status of a success.
    struct Wrong;
    impl PartialContext for Wrong {
        fn accept(&mut self, _: &[u8]) -> Step {
            Step::Failed(Failure { major: 0, minor: 0, text: String::new() })
        }
    }
    let establishing = server.queue(&init(Credential::Init, b""), Origin::Sim(1)).unwrap();
    let answer = establishing.step(b"", 0, || Box::new(Wrong));
    assert!(matches!(answer, InitAnswer::Failed(Failure { major: 0x000d_0000, .. })));
}
