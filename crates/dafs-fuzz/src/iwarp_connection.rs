//! A whole iWARP connection over a socket: the adapter of the provider on one side, on the other a
//! peer whose every byte is the input's. First come the set-up frames of MPA, raw or well-formed
//! except for fields that the input chooses. Segments of all kinds follow, in pieces that the input
//! cuts, against registered memory; the peer may not touch some of it. Meanwhile the adapter has
//! receives, sends, writes and reads of its own posted. The end is the peer's, the adapter's or the clock's.
//!
//! Checked: no panic; every posted work completes exactly once, in its order, and nothing is
//! reported after the end; memory that the peer may not write is unchanged, memory that it may not
//! read never shows up in what the adapter sends; in the end the adapter holds no socket.

use crate::input::Input;
use crate::iwarp::peer::{self, Peer};
use crate::iwarp::stream::stream;
use crate::iwarp::world::World;

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mode = input.byte();
    let (crc, accepting) = (mode & 1 != 0, mode & 2 != 0);
    let end = input.byte();
    let cuts = [input.byte(), input.byte(), input.byte()];
    let mut world = World::new(crc, mode & 4 != 0);
    let mut peer = if accepting {
        let address = world.listen();
        Peer::connect(address)
    } else {
        Peer::accept(|address| world.connect(address))
    };

    let (frame, their_crc) = peer::frame(&mut input, accepting);
    peer.send(&frame, &cuts, &mut world);
    world.settle(&mut peer);
    if accepting {
        world.answer(mode & 8 == 0);
        world.settle(&mut peer);
    }
    world.post(input.byte());
    let wire = stream(&mut input, crc || their_crc, &world.memory());
    peer.send(&wire, &cuts, &mut world);
    world.settle(&mut peer);

    match end % 4 {
        0 => peer.finish(),
        1 => peer.reset(),
        2 => world.disconnect(),
        _ => world.abort(),
    }
    world.settle(&mut peer);
    peer.finish();
    world.end(&mut peer);
    world.check();
    peer.check();
}
