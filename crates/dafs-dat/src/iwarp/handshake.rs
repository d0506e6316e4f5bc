//! MPA connection set-up: the offer, the answer, and the resulting agreement.
//!
//! Invariants
//! * Pure code: frames in, frames and agreements out.
//! * The consumer sees its private data only: the enhanced words and the block of this
//!   implementation are removed.
//! * FPDUs larger than a segment are agreed on only if both sides have sent that block.

use super::config::IwarpConfig;
use super::limits;
use crate::{ConnectError, PRIVATE_DATA_BYTES_MAX, PrivateData};
use dafs_wire::iwarp::mpa::{
    DAFS_BLOCK_BYTES, DEPTH_UNNEGOTIATED, DafsBlock, Enhanced, FRAME_HEADER_BYTES, Frame,
    FrameKind, MpaError,
};

/// The agreement of both sides on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Every FPDU carries a CRC.
    pub(super) crc: bool,
    /// The peer runs this implementation and takes large FPDUs.
    pub(super) large_fpdu: bool,
    /// Reads of the peer that this side answers at a time (IRD).
    pub(super) inbound_reads_max: u16,
    /// Own reads that the peer answers at a time (ORD).
    pub(super) outbound_reads_max: u16,
}

/// A decoded request.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) private_data: PrivateData,
    crc: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
    dafs_block: Option<DafsBlock>,
}

/// Checks the length of a consumer's private data.
pub(super) fn check_private_data(bytes: &[u8]) -> Result<(), ConnectError> {
    if bytes.len() > PRIVATE_DATA_BYTES_MAX {
        let (bytes, max) = (bytes.len(), PRIVATE_DATA_BYTES_MAX);
        return Err(ConnectError::PrivateData { bytes, max });
    }
    Ok(())
}

/// Consumer data of checked length, followed by the block of this implementation.
fn with_dafs_block(
    private_data: &[u8],
    dafs_block: Option<DafsBlock>,
) -> ([u8; DATA_BYTES], usize) {
    let mut all = [0; DATA_BYTES];
    let mut len = private_data.len();
    all[..len].copy_from_slice(private_data);
    if let Some(dafs_block) = dafs_block {
        all[len..len + DAFS_BLOCK_BYTES].copy_from_slice(&dafs_block.encode());
        len += DAFS_BLOCK_BYTES;
    }
    (all, len)
}

const DATA_BYTES: usize = PRIVATE_DATA_BYTES_MAX + DAFS_BLOCK_BYTES;

fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + Enhanced::BYTES + DATA_BYTES);
    let result = frame.encode(&mut bytes);
    debug_assert!(result.is_ok(), "consumer data was checked and is far below MPA's limit");
    bytes
}

/// The request of a connecting side. The private data has been checked.
pub(super) fn request(config: &IwarpConfig, private_data: &[u8]) -> Vec<u8> {
    let dafs_block = config.announce.then_some(DafsBlock { large_fpdu: true, crc: config.crc });
    let (data, len) = with_dafs_block(private_data, dafs_block);
    encode(&Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: config.crc,
        reject: false,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: config.inbound_reads_max,
            ord: config.outbound_reads_max,
            ..Enhanced::default()
        }),
        private_data: &data[..len],
    })
}

/// Checks a request. `Err` has the reason why the connection is closed without an answer.
pub(super) fn validate_request(frame: &Frame<'_>) -> Result<Offer, &'static str> {
    if frame.markers {
        return Err("it insists on MPA markers, which are not supported");
    }
    if frame.reject {
        return Err("its request has the reject flag set");
    }
    if let Some(words) = frame.enhanced
        && words.peer_to_peer
        && !words.rtr_write
        && !words.rtr_read
    {
        return Err("it offers no ready-to-receive frame but the empty one");
    }
    let (private_data, dafs_block) = DafsBlock::split(frame.private_data);
    Ok(Offer {
        private_data: private_data.to_vec(),
        crc: frame.crc || dafs_block.is_some_and(|dafs_block| dafs_block.crc),
        revision: frame.revision,
        enhanced: frame.enhanced,
        dafs_block,
    })
}

/// The answer to `offer`, with the agreement if it does not reject. The private data has been
/// checked.
pub(super) fn reply(
    config: &IwarpConfig,
    offer: &Offer,
    private_data: &[u8],
    reject: bool,
) -> (Vec<u8>, Agreed) {
    let crc = offer.crc || config.crc;
    let dafs_block = (config.announce && offer.dafs_block.is_some())
        .then_some(DafsBlock { large_fpdu: true, crc: config.crc });
    let outbound_reads_max = match offer.enhanced {
        Some(words) if words.ird != DEPTH_UNNEGOTIATED => config.outbound_reads_max.min(words.ird),
        _ => config.outbound_reads_max.min(UNTOLD_READS),
    };
    let words = offer.enhanced.map(|asked| Enhanced {
        ird: config.inbound_reads_max,
        ord: outbound_reads_max,
        // A peer that requests the peer-to-peer model sends its ready-to-receive frame as the first
        // FPDU. A zero-length write is the cheapest that it offers.
        peer_to_peer: asked.peer_to_peer,
        rtr_empty: false,
        rtr_write: asked.peer_to_peer && asked.rtr_write,
        rtr_read: asked.peer_to_peer && !asked.rtr_write,
    });
    let (data, len) = with_dafs_block(private_data, dafs_block);
    let bytes = encode(&Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc,
        reject,
        revision: offer.revision,
        enhanced: words,
        private_data: &data[..len],
    });
    let large_fpdu =
        dafs_block.is_some() && offer.dafs_block.is_some_and(|dafs_block| dafs_block.large_fpdu);
    let inbound_reads_max = config.inbound_reads_max;
    (bytes, Agreed { crc, large_fpdu, inbound_reads_max, outbound_reads_max })
}

/// ORD towards a peer that has not announced its IRD.
const UNTOLD_READS: u16 = 1;

/// Checks the answer to this side's request; returns the agreement and the peer's private data.
pub(super) fn validate_reply(
    config: &IwarpConfig,
    frame: &Frame<'_>,
) -> Result<(Agreed, PrivateData), ConnectError> {
    let (private_data, dafs_block) = DafsBlock::split(frame.private_data);
    let dafs_block = dafs_block.filter(|_| config.announce);
    if frame.reject {
        return Err(ConnectError::Rejected(private_data.to_vec()));
    }
    if frame.markers {
        return Err(protocol("it insists on MPA markers, which are not supported"));
    }
    if frame.enhanced.is_some_and(|words| words.peer_to_peer) {
        return Err(protocol("it wants a ready-to-receive frame that was not offered"));
    }
    // The responder announces its ORD, which may not exceed the IRD that we have offered (RFC 6581
    // 9.1); otherwise it would break the connection later.
    let offered = config.inbound_reads_max;
    if let Some(words) = frame.enhanced
        && words.ord != DEPTH_UNNEGOTIATED
        && words.ord > offered
    {
        let wanted = words.ord;
        let text = format!("it wants {wanted} reads outstanding, but {offered} were offered");
        return Err(protocol(text));
    }
    let depth = match frame.enhanced {
        Some(words) if words.ird != DEPTH_UNNEGOTIATED => words.ird,
        _ => UNTOLD_READS,
    };
    let agreed = Agreed {
        crc: config.crc || frame.crc,
        large_fpdu: dafs_block.is_some_and(|dafs_block| dafs_block.large_fpdu),
        inbound_reads_max: config.inbound_reads_max,
        outbound_reads_max: config.outbound_reads_max.min(depth).min(limits::READ_DEPTH_MAX),
    };
    Ok((agreed, private_data.to_vec()))
}

/// The error for a peer that violates the protocol.
pub(super) fn protocol(detail: impl Into<String>) -> ConnectError {
    ConnectError::Protocol { protocol: "iWARP (MPA)", detail: detail.into() }
}

impl From<MpaError> for ConnectError {
    fn from(error: MpaError) -> Self {
        protocol(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::iwarp::mpa::Decoded;

    fn frame(kind: FrameKind, bytes: &[u8]) -> Frame<'_> {
        match Frame::decode(kind, bytes).unwrap() {
            Decoded::Frame(frame, used) => {
                assert_eq!(used, bytes.len());
                frame
            }
            Decoded::Need(_) => panic!("cut short"),
        }
    }

    fn agree(initiator: &IwarpConfig, responder: &IwarpConfig) -> (Agreed, Agreed) {
        let asked = request(initiator, b"ask");
        let offer = validate_request(&frame(FrameKind::Request, &asked)).unwrap();
        assert_eq!(offer.private_data, b"ask");
        let (answer, theirs) = reply(responder, &offer, b"answer", false);
        let (ours, data) = validate_reply(initiator, &frame(FrameKind::Reply, &answer)).unwrap();
        assert_eq!(data, b"answer");
        (ours, theirs)
    }

    #[test]
    fn both_sides_agree_on_crc_depth_and_fpdu_size() {
        let plain = IwarpConfig::default();
        let crc = IwarpConfig { crc: true, outbound_reads_max: 4, ..plain.clone() };
        let foreign = IwarpConfig { announce: false, inbound_reads_max: 2, ..plain.clone() };
        for (one, other) in [(&plain, &plain), (&plain, &crc), (&crc, &plain)] {
            let (ours, theirs) = agree(one, other);
            assert!(ours.large_fpdu && theirs.large_fpdu);
            assert_eq!(ours.crc, one.crc || other.crc);
            assert_eq!(ours.crc, theirs.crc);
            assert_eq!(ours.outbound_reads_max, one.outbound_reads_max);
            assert_eq!(theirs.outbound_reads_max, other.outbound_reads_max);
        }
        for (one, other) in [(&plain, &foreign), (&foreign, &plain)] {
            let (ours, theirs) = agree(one, other);
            assert!(!ours.large_fpdu && !theirs.large_fpdu);
            assert!(ours.outbound_reads_max <= other.inbound_reads_max);
            assert!(theirs.outbound_reads_max <= one.inbound_reads_max);
        }
    }

    #[test]
    fn the_answer_mirrors_revision_and_peer_to_peer() {
        let config = IwarpConfig::default();
        let mut asked = Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: false,
            reject: false,
            revision: 1,
            enhanced: None,
            private_data: b"",
        };
        let offer = validate_request(&asked).unwrap();
        let (bytes, agreed) = reply(&config, &offer, b"", false);
        let answer = frame(FrameKind::Reply, &bytes);
        assert_eq!((answer.revision, answer.enhanced, agreed.large_fpdu), (1, None, false));

        let words = Enhanced { ird: 1, ord: 1, peer_to_peer: true, ..Enhanced::default() };
        asked.revision = 2;
        asked.enhanced = Some(Enhanced { rtr_read: true, ..words });
        let (bytes, _) = reply(&config, &validate_request(&asked).unwrap(), b"", false);
        let answer = frame(FrameKind::Reply, &bytes).enhanced.unwrap();
        assert!(answer.peer_to_peer && answer.rtr_read && !answer.rtr_write);
        assert_eq!(answer.ord, 1);

        asked.enhanced = Some(Enhanced { rtr_empty: true, ..words });
        assert!(validate_request(&asked).is_err());
        asked.markers = true;
        assert!(validate_request(&asked).is_err());
    }

    #[test]
    fn a_responder_that_reads_more_than_was_offered_is_refused() {
        let config = IwarpConfig { inbound_reads_max: 4, ..IwarpConfig::default() };
        let answer = |ord| {
            let enhanced = Some(Enhanced { ird: 8, ord, ..Enhanced::default() });
            let reply = Frame {
                kind: FrameKind::Reply,
                markers: false,
                crc: false,
                reject: false,
                revision: 2,
                enhanced,
                private_data: b"",
            };
            validate_reply(&config, &reply)
        };
        assert_eq!(answer(4).unwrap().0.inbound_reads_max, 4);
        assert!(answer(DEPTH_UNNEGOTIATED).is_ok());
        let error = answer(5).unwrap_err().to_string();
        assert!(error.contains("5 reads") && error.contains("4 were offered"), "{error}");
    }

    #[test]
    fn a_reject_carries_its_private_data() {
        let config = IwarpConfig::default();
        let asked = request(&config, b"");
        let offer = validate_request(&frame(FrameKind::Request, &asked)).unwrap();
        let (bytes, _) = reply(&config, &offer, b"no", true);
        let error = validate_reply(&config, &frame(FrameKind::Reply, &bytes)).unwrap_err();
        assert!(matches!(error, ConnectError::Rejected(data) if data == b"no"));
    }
}
