//! A session per prefix and process, opened at its first use.

use crate::acting;
use crate::config::{self, Mount};
use crate::failure::{Errno, Result};
use crate::report;
use dafs_client::{Client, Credential, File, FileHandle, User};
use dafs_mem::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The sessions of this process. A fork makes its own and leaves these untouched.
#[derive(Debug, Default)]
pub(crate) struct Process {
    clients: Mutex<HashMap<usize, Arc<Mutex<Option<Client>>>>>,
    /// Sessions that are being opened.
    connecting: AtomicUsize,
    /// Files opened a second time, which own the locks of the process.
    pub(crate) owners: Mutex<HashMap<FileHandle, Arc<File>>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The sessions of this process.
pub(crate) fn process() -> &'static Process {
    let mut current = PROCESS.load(Ordering::Acquire);
    if current.is_null() {
        let new = Box::into_raw(Box::default());
        let null = std::ptr::null_mut();
        current = match PROCESS.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(known) => {
                // SAFETY: the new one was not published.
                drop(unsafe { Box::from_raw(new) });
                known
            }
        };
    }
    // SAFETY: the pointer was leaked from a box and is never freed.
    unsafe { &*current }
}

/// True if this process has used a server.
pub(crate) fn is_any() -> bool {
    !PROCESS.load(Ordering::Acquire).is_null()
}

/// Starts a fork without sessions. The parent's stay untouched, locks and all.
pub(crate) fn after_fork_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
}

/// The session for a prefix, by its place in the configuration.
pub(crate) fn client(mount: usize) -> Result<Client> {
    let config = config::get().ok_or(Errno(libc::EIO))?;
    let url = &config.mounts.get(mount).ok_or(Errno(libc::EIO))?.url;
    // One place for each prefix, so that threads wait only for the server that they need.
    let place = process().clients.lock().entry(mount).or_default().clone();
    let mut place = place.lock();
    if let Some(client) = &*place {
        acting::check(client)?;
        return Ok(client.clone());
    }
    let connecting = &process().connecting;
    connecting.fetch_add(1, Ordering::Relaxed);
    let user = User::of_process();
    let mut options = config.options.clone();
    if options.credential == Credential::Process {
        let ids = user.ids();
        let groups = ids.groups.clone();
        options.credential = Credential::Ids { uid: ids.uid, gid: ids.gid, groups };
    }
    let client = Client::connect(url, &options);
    connecting.fetch_sub(1, Ordering::Relaxed);
    let client = client.inspect_err(|error| report::unreachable(mount, url, error))?;
    acting::opened(&client, &user);
    *place = Some(client.clone());
    Ok(client)
}

/// The session for a prefix, if it exists and is connected. Does not wait.
pub(crate) fn connected(mount: usize) -> Option<Client> {
    let place = process().clients.lock().get(&mount)?.clone();
    place.try_lock()?.clone().filter(Client::is_connected)
}

/// True if a server that this process needs is unreachable. Does not wait.
pub(crate) fn is_any_away() -> bool {
    let process = process();
    let places: Vec<_> = process.clients.lock().values().cloned().collect();
    let is_away = |client: &Client| !client.is_connected();
    process.connecting.load(Ordering::Relaxed) != 0
        || places.iter().any(|place| {
            // A locked place is in use at this moment, or being connected.
            place.try_lock().is_some_and(|client| client.as_ref().is_some_and(is_away))
        })
}

/// The index of a prefix in the configuration.
pub(crate) fn number(mount: &'static Mount) -> usize {
    let known = config::get()
        .and_then(|config| config.mounts.iter().position(|known| std::ptr::eq(known, mount)));
    // INVARIANT: a mount comes from the configuration.
    known.unwrap_or(usize::MAX)
}

/// Removes all sessions, so that the caller can end them.
pub(crate) fn take_all() -> Vec<Client> {
    process().owners.lock().clear();
    let places: Vec<_> = process().clients.lock().drain().map(|(_, place)| place).collect();
    // A locked place is being connected.
    places.iter().filter_map(|place| place.try_lock()?.take()).collect()
}
