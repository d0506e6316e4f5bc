//! The tokens of dafs-gss, for both ends of RPCSEC_GSS.

use dafs_gss::token::{Keys, Parts};
use dafs_mem::VolatileSlice;
use dafs_rpc::client::gss::InitiatorKeys;
use dafs_rpc::gss::{BadToken, MessageKeys};

/// Tokens of RFC 4121 for an initiator.
#[derive(Debug)]
pub struct InitiatorTokens(pub Keys);

impl InitiatorKeys for InitiatorTokens {
    fn mic_bytes(&self) -> usize {
        self.0.enctype().mic_len()
    }

    fn mic(&self, parts: &[VolatileSlice<'_>], mic: &mut [u8]) {
        self.0.mic(Parts::new(parts), mic).unwrap();
    }

    fn verify(&self, parts: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
        self.0.verify_mic(Parts::new(parts), mic).map_err(|_| BadToken)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.enctype().sealed_len(plain_bytes)
    }

    fn seal(&self, parts: &[VolatileSlice<'_>], token: &mut [u8]) {
        self.0.seal(Parts::new(parts), token).unwrap();
    }

    fn open(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
        self.0.open_to(token, write).map(drop).map_err(|_| BadToken)
    }
}

/// Tokens of RFC 4121 for an acceptor.
#[derive(Debug)]
pub struct AcceptorTokens(pub Keys);

impl MessageKeys for AcceptorTokens {
    fn mic_bytes(&self) -> usize {
        self.0.enctype().mic_len()
    }

    fn mic(&self, parts: &[&[u8]], mic: &mut [u8]) {
        self.0.mic(Parts::new(parts), mic).unwrap();
    }

    fn verify(&self, parts: &[&[u8]], mic: &[u8]) -> Result<(), BadToken> {
        self.0.verify_mic(Parts::new(parts), mic).map_err(|_| BadToken)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.enctype().sealed_len(plain_bytes)
    }

    fn seal(&self, parts: &[&[u8]], token: &mut [u8]) {
        self.0.seal(Parts::new(parts), token).unwrap();
    }

    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken> {
        self.0.open(token, plain).map_err(|_| BadToken)
    }
}
