//! A client's handle to one connection of a port.

use super::core::{Connection, Stage};
use super::driver::Driver;
use super::port::{Port, Shared, coarse_now};
use super::{helper, waiter};
use crate::client::BackHandler;
use crate::client::core::Results;
use crate::client::error::CallError;
use crate::client::gss::Outgoing;
use crate::client::memory::Memory;
use crate::client::options::Options;
use crate::limits::GATHERING_CALLS_MIN;
use dafs_dat::{Address, ConnectError, EndpointId};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A connection; dropping the handle ends it.
#[derive(Debug)]
pub(in crate::client) struct Link {
    port: Port,
    endpoint: EndpointId,
    pub(in crate::client) options: Options,
    broken: Arc<OnceLock<String>>,
}

impl Link {
    /// Starts to connect.
    pub(in crate::client) fn begin(
        port: &Port,
        address: &Address,
        options: Options,
        back: Option<BackHandler>,
        first_xid: u32,
    ) -> io::Result<Self> {
        let is_called = back.is_some();
        let mut driver = port.shared.lock();
        let back = back.map(Arc::new);
        let connection =
            Connection::connect(&mut driver.base, address, options.clone(), back, first_xid);
        let connection = connection.map_err(io_error)?;
        let (endpoint, broken) = (connection.endpoint, connection.broken().clone());
        driver.add(connection);
        port.shared.send(&mut driver);
        let link = Self { port: port.clone(), endpoint, options, broken };
        let helped = if is_called { helper::start(&port.shared) } else { Ok(()) };
        drop(driver);
        helped?;
        Ok(link)
    }

    /// Waits until the connection is established.
    pub(in crate::client) fn established(&self) -> io::Result<()> {
        let until = waiter::after(self.options.connect_timeout);
        let made = self.shared().wait(until, None, |driver| {
            let (connection, _) = driver.on(self.endpoint)?;
            match connection.stage() {
                Stage::Connecting => None,
                Stage::Up => Some(Ok(())),
                Stage::Over => Some(Err(connection.take_connect_error())),
            }
        });
        match made {
            Some(Ok(())) => Ok(()),
            Some(Err(Some(error))) => Err(io_error(error)),
            Some(Err(None)) => {
                let reason = self.broken().unwrap_or("the connection was lost").to_owned();
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason))
            }
            None => Err(io_error(ConnectError::TimedOut(self.options.connect_timeout))),
        }
    }

    pub(in crate::client) fn is_established(&self) -> bool {
        let mut driver = self.shared().lock();
        driver.on(self.endpoint).is_some_and(|(connection, _)| connection.stage() == Stage::Up)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.port.shared
    }

    pub(in crate::client) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    pub(in crate::client) fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        self.port.allocate(bytes)
    }

    /// Takes a call. It leaves now, or with the next poll if it may be batched.
    pub(in crate::client) fn submit(
        &self,
        outgoing: &Outgoing<'_>,
        is_hurried: bool,
    ) -> Result<u32, CallError> {
        let mut driver = self.shared().lock();
        let Some((connection, base)) = driver.on(self.endpoint) else {
            let reason = self.broken().unwrap_or_default().to_owned();
            return Err(CallError::Disconnected(reason));
        };
        outgoing.head.leaves();
        let xid = connection.submit(base, outgoing)?;
        let in_flight = connection.in_flight() as usize;
        driver.held_back += 1;
        let may_wait = in_flight >= GATHERING_CALLS_MIN && driver.held_back * 2 < in_flight;
        if is_hurried && !may_wait {
            self.shared().send(&mut driver);
        } else {
            self.shared().send_if_asleep(&mut driver);
        }
        Ok(xid)
    }

    /// Waits until fewer than `max` calls are unanswered.
    pub(in crate::client) fn await_room(&self, max: usize) -> Result<(), CallError> {
        let until = waiter::after(self.options.call_timeout);
        let found = self.shared().wait(until, None, |driver| match driver.on(self.endpoint) {
            Some((connection, _)) => (connection.unanswered() < max).then_some(()),
            None => Some(()),
        });
        found.ok_or(CallError::TimedOut)
    }

    /// Waits for the reply and ends the call.
    pub(in crate::client) fn wait(&self, xid: u32, until: Instant) -> Result<Results, CallError> {
        let answer = self.shared().wait(until, Some((self.endpoint, xid)), |driver| {
            match driver.on(self.endpoint) {
                Some((connection, _)) => connection.fetch(xid),
                None => Some(Err(CallError::TimedOut)),
            }
        });
        answer.unwrap_or_else(|| {
            self.give_up(xid);
            Err(CallError::TimedOut)
        })
    }

    /// True when the call has ended.
    pub(in crate::client) fn is_over(&self, xid: u32) -> bool {
        let mut driver = self.shared().lock();
        let look = |driver: &mut Driver| {
            driver.on(self.endpoint).is_none_or(|(connection, _)| connection.is_over(xid))
        };
        if look(&mut driver) {
            return true;
        }
        self.shared().progress_beside(&mut driver, coarse_now());
        let mut driver = self.shared().take_back_calls(driver);
        look(&mut driver)
    }

    pub(in crate::client) fn give_up(&self, xid: u32) {
        let mut driver = self.shared().lock();
        if let Some((connection, base)) = driver.on(self.endpoint) {
            connection.give_up(base, xid);
            self.shared().send_if_asleep(&mut driver);
        }
    }

    pub(in crate::client) fn close(&self) {
        let mut driver = self.shared().lock();
        if let Some((connection, base)) = driver.on(self.endpoint) {
            connection.close(base);
            self.send_close(&mut driver);
        }
    }

    /// Sends the end of the connection to the server although no thread may wait any more.
    fn send_close(&self, driver: &mut Driver) {
        self.shared().send(driver);
        self.shared().progress_beside(driver, coarse_now());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut driver = self.shared().lock();
        driver.forget(self.endpoint);
        self.send_close(&mut driver);
    }
}

fn io_error(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Io(error) => error,
        ConnectError::TimedOut(_) => io::Error::new(io::ErrorKind::TimedOut, error),
        ConnectError::Rejected(_) => io::Error::new(io::ErrorKind::ConnectionRefused, error),
        other => io::Error::other(other),
    }
}
