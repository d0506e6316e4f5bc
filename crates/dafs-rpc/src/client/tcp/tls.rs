//! TLS of a client's connection: the probe, the handshake, and records in user space.
//!
//! Invariants
//! * The answer to the probe must be STARTTLS; anything else ends the connection. So nobody on the
//!   way can take TLS out.
//! * One record is read at a time until the handshake is complete.
//! * The callers of `transmit` hold `outbound`, so records of data leave in order.

use super::{Inbound, Shared, is_passing};
use crate::client::core::Event;
use crate::client::error::CallError;
use crate::client::tls::{ClientTls, TlsError};
use crate::limits::TLS_RECEIVE_BYTES;
use crate::memory::source;
use crate::output::Parts;
use crate::tls::{Next, now_seconds, probe};
use dafs_dat::tls::Trusted;
use dafs_mem::{VolatileSlice, readv, sendmsg};
use dafs_tls::{Alert, Channel, End, Handshake, Progress, Protocol, RECORD_BYTES_MAX};
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, FragmentMark, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, Encode};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Bytes of an answer to a probe. A reply without results, with its longest verifier, is shorter.
const ANSWER_BYTES_MAX: usize = 512;

/// Begins TLS on a new connection, within `timeout`.
///
/// # Errors
/// [`TlsError`] inside an `io::Error`, and those of the socket.
pub(in crate::client) fn begin(
    stream: &TcpStream,
    tls: &ClientTls,
    timeout: Duration,
) -> io::Result<(Channel, Option<Trusted>)> {
    stream.set_nonblocking(false)?;
    let mut line = Line { stream, deadline: Instant::now() + timeout };
    ask(&mut line, tls)?;
    let secured = shake(&mut line, tls)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(secured)
}

/// A blocking socket whose calls end at one deadline.
struct Line<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl Line<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let sent = (&mut &*self.stream).write_all(bytes);
        sent.map_err(as_timeout)
    }

    /// Reads some bytes; none at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match (&mut &*self.stream).read(into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other.map_err(as_timeout),
            }
        }
    }

    fn read_exactly(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            match self.read(&mut into[filled..])? {
                0 => return Err(TlsError::NoAnswer.into()),
                read => filled += read,
            }
        }
        Ok(())
    }
}

/// A timeout of a blocking socket looks like a socket that does not block.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

/// Sends the probe, and takes its answer (RFC 9289 4.1).
fn ask(line: &mut Line<'_>, tls: &ClientTls) -> io::Result<()> {
    let (program, version) = tls.program();
    let xid = crate::client::first_xid();
    let call = probe::request(xid, program, version).encoded();
    // INVARIANT: a header has tens of bytes, and a fragment may have 2 GiB.
    let mark = FragmentMark::whole(call.len()).unwrap_or(FragmentMark { len: 0, last: true });
    line.send(&[&mark.to_bytes()[..], &call].concat())?;
    let mut mark = [0; 4];
    line.read_exactly(&mut mark)?;
    let mark = FragmentMark::from_bytes(mark);
    let len = mark.len as usize;
    if !mark.last || len > ANSWER_BYTES_MAX {
        return Err(TlsError::NotOffered.into());
    }
    let mut answer = [0; ANSWER_BYTES_MAX];
    line.read_exactly(&mut answer[..len])?;
    if is_offer(&answer[..len], xid) { Ok(()) } else { Err(TlsError::NotOffered.into()) }
}

/// True for the answer that lets TLS begin.
fn is_offer(answer: &[u8], xid: u32) -> bool {
    let mut decoder = Decoder::new(answer);
    let Ok(header) = decoder.value::<ReplyHeader<'_>>() else { return false };
    let ReplyStatus::Accepted { verifier, status } = header.status else { return false };
    header.xid == xid
        && status == AcceptStatus::Success
        && verifier.flavor == AuthFlavor::NONE
        && verifier.body == probe::STARTTLS
        && decoder.rest().is_empty()
}

fn shake(line: &mut Line<'_>, tls: &ClientTls) -> io::Result<(Channel, Option<Trusted>)> {
    let begun = Handshake::client(&tls.side(), tls.name(), Protocol::Rpc, now_seconds());
    let mut handshake = begun.map_err(TlsError::from)?;
    let mut record = vec![0; RECORD_BYTES_MAX];
    loop {
        let stepped = handshake.step();
        let output = handshake.take_output();
        let sent = line.send(&output);
        // The server learns the reason by the alert; the user gets it even if that fails.
        let progress = stepped.map_err(TlsError::from)?;
        sent?;
        if progress == Progress::Done {
            break;
        }
        while !handshake.is_due() {
            let wanted = handshake.needed_bytes().min(record.len());
            match line.read(&mut record[..wanted])? {
                0 => return Err(TlsError::Cut.into()),
                read => handshake.feed(&record[..read]),
            };
        }
    }
    let established = handshake.finish().map_err(TlsError::from)?;
    if tls.is_mutual() && !established.facts.has_shown_certificate {
        return Err(TlsError::NotAsked.into());
    }
    Ok((Channel::new(established.keys), tls.trusted(established.facts)))
}

impl Shared {
    /// Ends a connection whose server is not trusted any more, before its next call.
    pub(in crate::client) fn check_trust(&self) -> Result<(), CallError> {
        let Some(Err(distrust)) = self.trusted.as_ref().map(Trusted::check) else { return Ok(()) };
        self.break_off(format!("the server's certificate is not trusted any more: {distrust}"));
        self.check()
    }

    /// Sends some of the parts; in TLS as records. Returns the bytes of the parts that have left.
    pub(super) fn transmit(&self, parts: &Parts<'_>) -> io::Result<usize> {
        let Some(sending) = &self.sending else {
            return sendmsg(self.socket.as_fd(), parts, libc::MSG_NOSIGNAL);
        };
        let mut sending = sending.lock();
        if !sending.is_pending() {
            sending.seal_views(parts)?;
        }
        while let Some(rest) = sending.rest() {
            let sent = sendmsg(self.socket.as_fd(), &[rest], libc::MSG_NOSIGNAL)?;
            if let Some(plain_bytes) = sending.sent(sent) {
                return Ok(plain_bytes);
            }
        }
        Ok(0)
    }

    /// True while a record of TLS has been sent in part.
    pub(super) fn is_inside_record(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| sending.lock().is_pending())
    }

    /// Reads and opens records, and takes what they carry.
    pub(super) fn read_records(
        &self,
        inbound: &mut Inbound,
        calls: &mut Vec<Event>,
    ) -> Result<(), String> {
        let Inbound { reader, budget, receive, receiving } = inbound;
        let Some(receiving) = receiving else { return Ok(()) };
        let stream = receive.spare(TLS_RECEIVE_BYTES);
        let behind = &mut stream[receiving.kept_bytes()..];
        let read = match readv(self.socket.as_fd(), &[VolatileSlice::from_mut(behind)]) {
            Ok(0) => {
                return Err(match receiving.end() {
                    End::Closed => "the server closed it".to_owned(),
                    _ => "it was cut: the end of TLS is missing".to_owned(),
                });
            }
            Ok(read) => read,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let filled = receiving.put_kept(stream) + read;
        let mut at = 0;
        loop {
            reader.make_room(budget).map_err(|error| error.to_string())?;
            let next = receiving.next(&mut stream[at..filled], reader);
            match next.map_err(|error| error.to_string())? {
                Next::More => break,
                Next::Nothing(bytes) => at += bytes,
                Next::Closed => return Err("the server closed it".to_owned()),
                Next::Data(plain, bytes) => {
                    self.take(reader, budget, plain, calls)?;
                    at += bytes;
                }
            }
        }
        receiving.keep(&stream[at..filled]).map_err(|error| error.to_string())
    }

    /// Tells the server that nothing follows, as far as the socket takes it at once.
    pub(super) fn say_goodbye(&self) {
        let Some(mut sending) = self.sending.as_ref().and_then(|sending| sending.try_lock()) else {
            return;
        };
        if let Some(record) = sending.close(Alert::CLOSE_NOTIFY) {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            let _ = sendmsg(self.socket.as_fd(), &[source(&record)], flags);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::rpc::OpaqueAuth;

    #[test]
    fn only_starttls_is_an_offer() {
        let answer = |verifier, status| {
            let status = ReplyStatus::Accepted { verifier, status };
            ReplyHeader { xid: 7, status }.encoded()
        };
        let body = |flavor, body| OpaqueAuth { flavor, body };
        let offer = answer(body(AuthFlavor::NONE, probe::STARTTLS), AcceptStatus::Success);
        assert!(is_offer(&offer, 7));
        assert!(!is_offer(&offer, 8));
        assert!(!is_offer(&[&offer[..], &[0; 4]].concat(), 7));
        assert!((0..offer.len()).all(|len| !is_offer(&offer[..len], 7)));
        for (verifier, status) in [
            (OpaqueAuth::NONE, AcceptStatus::Success),
            (body(AuthFlavor::NONE, b"STARTTLX"), AcceptStatus::Success),
            (body(AuthFlavor::SYS, probe::STARTTLS), AcceptStatus::Success),
            (body(AuthFlavor::NONE, probe::STARTTLS), AcceptStatus::ProgramUnavailable),
        ] {
            assert!(!is_offer(&answer(verifier, status), 7), "{verifier:?} {status:?}");
        }
        let denied = dafs_wire::rpc::RejectStatus::Auth(dafs_wire::rpc::AuthStatus::BadCredential);
        assert!(!is_offer(&ReplyHeader::denied(7, denied).encoded(), 7));
    }
}
