//! The bytes of a stranger to a TLS server, before anything is known about it. The first byte of
//! the input says how the stream is cut into pieces.
//!
//! Checked: no panic, no keys, little output, and the same end however the stream is cut.

use dafs_tls::pki::Folder;
use dafs_tls::{
    Handshake, HandshakeError, Progress, Protocol, ServerFiles, ServerSide, TransportSecurity,
};
use std::sync::{Arc, OnceLock};

const NOW_SECONDS: u64 = 1_800_000_000;

/// A server whose files are gone once it has read them.
fn side() -> &'static Arc<ServerSide> {
    static SIDE: OnceLock<Arc<ServerSide>> = OnceLock::new();
    SIDE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::create(&directory.path().join("pki"), "CA", NOW_SECONDS).unwrap();
        let made = folder.add_server(&["nas".to_owned()], NOW_SECONDS).unwrap();
        let files = ServerFiles {
            certificate: made.certificate,
            key: made.key,
            authorities: Some(folder.authority_files().certificate),
            revocations: None,
            policy: TransportSecurity::Mtls,
        };
        Arc::new(files.load(NOW_SECONDS).unwrap())
    })
}

/// The error if there is one, the bytes that the server took, and the bytes that it sent.
fn serve(stream: &[u8], piece_bytes: usize) -> (Option<HandshakeError>, usize, usize) {
    let protocols = [Protocol::Dafs, Protocol::Rpc];
    let mut server = Handshake::server(side(), &protocols, NOW_SECONDS).unwrap();
    let (mut taken, mut sent) = (0, 0);
    loop {
        let rest = &stream[taken..];
        let now = server.feed(&rest[..piece_bytes.min(rest.len())]);
        taken += now;
        let step = server.step();
        sent += server.take_output().len();
        match step {
            Ok(Progress::Reading) if now > 0 => {}
            Ok(Progress::Reading) => {
                assert!(taken == stream.len() && server.finish().is_err());
                return (None, taken, sent);
            }
            Ok(Progress::Done) => panic!("a stranger has finished a handshake"),
            Err(error) => return (Some(error), taken, sent),
        }
    }
}

pub fn run(data: &[u8]) {
    let [cut, stream @ ..] = data else { return };
    let whole = serve(stream, usize::MAX);
    assert!(whole.2 < 8 << 10);
    // Output has random numbers and signatures, whose lengths vary.
    let pieces = serve(stream, usize::from(*cut).max(1));
    assert!(whole.0 == pieces.0 && whole.1 == pieces.1);
}
