//! The bytes from one peer to an RPC server: records, calls, expected and unexpected replies. The first byte of the input says how the stream is cut into pieces; the
//! second how many calls may be in hand.
//!
//! Checked: no panic, and the same answers, or the same end, however the stream is cut.

use dafs_rpc::server::Config;
use dafs_rpc::{
    AcceptStatus, Call, CallbackError, CallbackRequest, ConnectionId, Handled, Handler,
    LocalConnection, LocalReactor, Reply,
};

/// Does whatever the procedure says.
#[derive(Default)]
struct Anything {
    calls_back: usize,
    back_replies: usize,
}

impl Handler for Anything {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        match call.procedure % 8 {
            0 => Reply::from_bytes(call.args).into(),
            1 => {
                let (args, responder) = call.later();
                responder.respond(Reply::from_bytes(&args));
                Handled::Later
            }
            2 => {
                drop(call.later());
                Handled::Later
            }
            3 => {
                self.calls_back += 1;
                let (program, version, procedure, token) = (1, 1, 1, 7);
                let (auth_sys, args) = (None, Vec::new());
                let back = CallbackRequest { program, version, procedure, auth_sys, args, token };
                call.connection().send_callback(back);
                Reply::new().into()
            }
            4 => {
                let mut reply = Reply::new();
                let len = call.args.len() * 100;
                if let Ok(mut bulk) = reply.bulk(len) {
                    bulk.view().fill(1);
                    bulk.finish(len);
                }
                reply.into()
            }
            5 => Handled::Drop,
            _ => AcceptStatus::ProcedureUnavailable.into(),
        }
    }

    fn back_reply(&mut self, _: ConnectionId, token: u64, _: Result<&[u8], CallbackError>) {
        assert_eq!(token, 7);
        self.back_replies += 1;
    }
}

/// The replies, sorted, and whether the peer was cut off.
fn serve(pieces: &[&[u8]], config: &Config, reactor: &LocalReactor) -> (Vec<Vec<u8>>, bool) {
    let mut handler = Anything::default();
    let mut connection = LocalConnection::new(reactor, 1, config.clone());
    let mut output = Vec::new();
    let mut broken = false;
    // Pauses at the end let answers come in and output go out.
    'all: for piece in pieces {
        let mut piece = *piece;
        loop {
            if connection.feed(reactor, &mut handler, piece, 0).is_err() {
                broken = true;
                break 'all;
            }
            piece = &[];
            let events = reactor.take_events();
            let some = connection.take_output(usize::MAX, 0);
            if events.is_empty() && some.is_empty() {
                break;
            }
            output.extend(some);
            for event in events {
                assert!(connection.apply(reactor, &mut handler, event, 0).is_none());
            }
        }
    }
    for event in reactor.take_events() {
        assert!(connection.apply(reactor, &mut handler, event, 0).is_none());
    }
    output.extend(connection.take_output(usize::MAX, 0));
    connection.end(reactor, &mut handler, 0);
    assert_eq!(handler.calls_back, handler.back_replies);
    let mut replies = Vec::new();
    let mut rest = &output[..];
    while let Some((mark, behind)) = rest.split_first_chunk() {
        let len = u32::from_be_bytes(*mark) & 0x7fff_ffff;
        let (record, behind) = behind.split_at(len as usize);
        // Calls back may be given up while much output waits, so they are not compared.
        if record[7] == 1 {
            replies.push(record.to_vec());
        }
        rest = behind;
    }
    replies.sort();
    (replies, broken)
}

pub fn run(data: &[u8]) {
    let [cut, calls_max, stream @ ..] = data else { return };
    let reactor = LocalReactor::new().expect("descriptors are left");
    let roomy = Config { record_bytes_max: 1 << 16, ..Config::default() };
    let tight = Config {
        calls_per_connection_max: usize::from(calls_max % 4) + 1,
        output_bytes_max: 1 + (usize::from(*calls_max) << 6),
        ..roomy.clone()
    };
    let whole = serve(&[stream], &roomy, &reactor);
    let pieces: Vec<&[u8]> = stream.chunks(usize::from(*cut).max(1)).collect();
    assert!(whole == serve(&pieces, &tight, &reactor));
}
