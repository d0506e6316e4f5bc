//! TLS in the kernel (Documentation/networking/tls.rst): after the handshake a socket gets the
//! keys, and then encrypts and decrypts by itself.
//!
//! Invariants
//! * A socket that the kernel cannot take over is unchanged, and its keys come back to the caller.
//! * Each read tells data from other records. A plain read would fail with EIO at close_notify.
//! * A key update ends the connection: kernels before Linux 6.14 cannot change keys.

mod sys;

use crate::alert::{Alert, Control, ControlError, Judge, content};
use crate::keys::{DirectionKey, TrafficKeys};
use crate::limits::EMPTY_RECORDS_MAX;
use crate::suite::Suite;
use dafs_mem::VolatileSlice;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use thiserror::Error;
use zeroize::Zeroizing;

/// TLS 1.3 and the cipher suites as the kernel numbers them (`linux/tls.h`).
const TLS_1_3: u16 = 0x0304;
const AES_GCM_128: u16 = 51;
const AES_GCM_256: u16 = 52;

/// Bytes of `struct tls12_crypto_info_aes_gcm_256` without its key.
const INFO_BYTES_WITHOUT_KEY: usize = 4 + 8 + 4 + 8;

/// Why the kernel does not protect records.
#[derive(Debug, Error)]
pub enum NoKernelTls {
    /// The kernel was built without it, or its module is missing.
    #[error("the kernel has no TLS (CONFIG_TLS); load its module if there is one: modprobe tls")]
    NotBuilt,
    /// It takes over whole connections alone (`tls_init` in `net/tls/tls_main.c`).
    #[error("the peer has ended the connection already, so the kernel does not take it over")]
    Ended,
    /// The kernel refuses, for another reason.
    #[error("the kernel refuses TLS on this socket: {0}")]
    Refused(io::Error),
}

impl NoKernelTls {
    fn new(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::NotBuilt,
            Some(libc::ENOTCONN) => Self::Ended,
            _ => Self::Refused(error),
        }
    }
}

/// Asks the kernel, on a socket that is not connected.
///
/// # Errors
/// [`NoKernelTls`].
pub fn available() -> Result<(), NoKernelTls> {
    let refused = |errno: rustix::io::Errno| NoKernelTls::Refused(errno.into());
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map_err(refused)?;
    match sys::set_option(socket.as_fd(), sys::SOL_TCP, sys::TCP_ULP, b"tls") {
        Ok(()) => Ok(()),
        // TLS is there, and wants a connection first.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Err(error) => Err(NoKernelTls::new(error)),
    }
}

/// Why the kernel did not take a connection over.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The kernel protects one direction and not the other. The connection must end.
    #[error("the kernel took the keys of one direction alone: {0}")]
    Half(io::Error),
    /// The socket is as it was: protect the records in user space.
    #[error("{reason}")]
    Unavailable {
        /// The reason, for a metric and for `dafs doctor`.
        reason: NoKernelTls,
        /// The keys, for [`crate::Channel`].
        keys: Box<TrafficKeys>,
    },
}

/// Gives the keys of a finished handshake to the kernel. The output of the handshake must be in the
/// socket, and no byte behind the handshake may have been read.
///
/// # Errors
/// [`InstallError`].
pub fn install(socket: BorrowedFd<'_>, keys: TrafficKeys) -> Result<KernelTls, InstallError> {
    let begun = sys::set_option(socket, sys::SOL_TCP, sys::TCP_ULP, b"tls").and_then(|()| {
        sys::set_option(socket, sys::SOL_TLS, sys::TLS_TX, &crypto_info(&keys.send))
    });
    if let Err(error) = begun {
        let (reason, keys) = (NoKernelTls::new(error), Box::new(keys));
        return Err(InstallError::Unavailable { reason, keys });
    }
    sys::set_option(socket, sys::SOL_TLS, sys::TLS_RX, &crypto_info(&keys.receive))
        .map_err(InstallError::Half)?;
    // Our ends send no padding. Without it the kernel decrypts straight to the reader (Linux 6.0).
    // A record with padding still is right, and costs a second decryption.
    let no_pad = sys::TLS_RX_EXPECT_NO_PAD;
    let _ = sys::set_option(socket, sys::SOL_TLS, no_pad, &1i32.to_ne_bytes());
    Ok(KernelTls { judge: Judge::new(keys.side), suite: keys.suite(), controls: 0 })
}

/// The bytes of `struct tls12_crypto_info_aes_gcm_128` or `_256`.
fn crypto_info(key: &DirectionKey) -> Zeroizing<Vec<u8>> {
    let cipher = match key.suite() {
        Suite::Aes128 => AES_GCM_128,
        Suite::Aes256 => AES_GCM_256,
    };
    let (salt, iv) = key.iv.split_at(4);
    let mut info = Zeroizing::new(Vec::with_capacity(INFO_BYTES_WITHOUT_KEY + key.key().len()));
    info.extend(TLS_1_3.to_ne_bytes());
    info.extend(cipher.to_ne_bytes());
    info.extend_from_slice(iv);
    info.extend_from_slice(key.key());
    info.extend_from_slice(salt);
    info.extend(key.sequence.to_be_bytes());
    info
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes of data. They are of several records when several have come.
    Data(usize),
    /// A record without meaning. Read again.
    Nothing,
    /// The peer's close_notify: all that it sent has come.
    Closed,
    /// The end of the stream without close_notify: it was cut.
    Cut,
}

/// Why a read brought nothing. All but a wait end the connection.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// A record that is no data ends the connection.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The kernel's error: EAGAIN while nothing has come, EBADMSG for a record that was changed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A connection whose records the kernel protects. Writes need nothing special: `write`, `sendmsg`
/// and `sendfile` on the socket make records of up to 16 KiB.
#[derive(Debug)]
pub struct KernelTls {
    judge: Judge,
    suite: Suite,
    /// Records other than data, since the last data.
    controls: u32,
}

/// Records of a connection so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// Sent by this end.
    pub sent: u64,
    /// Received by this end.
    pub received: u64,
}

impl KernelTls {
    /// Reads into the views. A record that is no data is judged; the views may then hold its bytes.
    /// A record that is no data and longer than the views ends the connection.
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        views: &[VolatileSlice<'_>],
    ) -> Result<Received, ReceiveError> {
        let sys::Message { count, kind, is_end } = sys::receive(socket, views)?;
        match kind {
            // An empty record of data has a type, the end of the stream has none.
            None if count == 0 => Ok(Received::Cut),
            None | Some(content::APPLICATION_DATA) if count > 0 => {
                self.controls = 0;
                Ok(Received::Data(count))
            }
            None | Some(content::APPLICATION_DATA) => {
                self.count_control()?;
                Ok(Received::Nothing)
            }
            // The rest would look like a record of its own.
            Some(kind) if !is_end => Err(ControlError::Unexpected(kind).into()),
            Some(kind) => {
                self.count_control()?;
                match self.judge.judge(kind, &first_bytes(views, count))? {
                    Control::Ignore => Ok(Received::Nothing),
                    Control::Close => Ok(Received::Closed),
                }
            }
        }
    }

    fn count_control(&mut self) -> Result<(), ControlError> {
        self.controls += 1;
        match self.controls <= EMPTY_RECORDS_MAX {
            true => Ok(()),
            false => Err(ControlError::Unexpected(content::APPLICATION_DATA)),
        }
    }

    /// Sends the last record: close_notify, or the alert for an error.
    ///
    /// # Errors
    /// The kernel's; EAGAIN when the socket is full.
    pub fn close(&self, socket: BorrowedFd<'_>, alert: Alert) -> io::Result<()> {
        let fatal = alert != Alert::CLOSE_NOTIFY;
        sys::send_record(socket, content::ALERT, &[1 + u8::from(fatal), alert.0]).map(|_| ())
    }

    /// Asks the kernel how many records there were. Ask now and then: it is two system calls.
    ///
    /// # Errors
    /// The kernel's.
    pub fn records(&self, socket: BorrowedFd<'_>) -> io::Result<Records> {
        let sent = self.sequence(socket, sys::TLS_TX)?;
        Ok(Records { sent, received: self.sequence(socket, sys::TLS_RX)? })
    }

    fn sequence(&self, socket: BorrowedFd<'_>, direction: i32) -> io::Result<u64> {
        let mut info = Zeroizing::new([0; INFO_BYTES_WITHOUT_KEY + 32]);
        let info = &mut info[..INFO_BYTES_WITHOUT_KEY + self.suite.key_bytes()];
        let bytes = sys::get_option(socket, sys::SOL_TLS, direction, info)?;
        let last = info[..bytes].last_chunk().filter(|_| bytes == info.len());
        last.map(|number| u64::from_be_bytes(*number))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The first bytes of the views, of a record that is no data.
fn first_bytes(views: &[VolatileSlice<'_>], count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    for view in views {
        let wanted = (count - bytes.len()).min(view.len());
        if let Some(part) = view.slice(0, wanted) {
            part.scan(|piece| bytes.extend_from_slice(piece));
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
