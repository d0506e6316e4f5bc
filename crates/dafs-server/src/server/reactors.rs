//! Reactors over DAFS: threads, each with an engine of its own on sockets that they share.

use super::StartError;
use super::listen::Listener;
use crate::config::Config;
use dafs_dat::Adapter;
use dafs_dat::connections::Connections;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_engine::reactor::{self, Control};
use dafs_engine::{Engine, Inbox, Shared};
use dafs_store::vital;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// A reactor and its thread.
pub(super) struct Reactor {
    pub(super) control: Arc<Control>,
    pub(super) wake: Arc<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    pub(super) fn start(
        name: String,
        config: &Config,
        connections: &Arc<Connections>,
        shared: &Arc<Shared>,
        listeners: &[Listener],
    ) -> Result<Self, StartError> {
        let adapters = vec![
            iwarp_adapter(config, connections, listeners)?,
            shm_adapter(connections, listeners)?,
        ];
        let inbox = Arc::new(Inbox::watched()?);
        let engine = Engine::new(shared.clone(), adapters, inbox.clone());
        let control = Arc::new(Control::default());
        let (own, wake) = (control.clone(), config.wake);
        let thread = vital::spawn(name, move || reactor::run(engine, wake, &own))?;
        Ok(Self { control, wake: Arc::new(move || inbox.wake()), thread: Some(thread) })
    }
}

/// Ends connections in order and waits for the threads.
pub(super) fn stop(reactors: &mut [Reactor]) {
    for reactor in &*reactors {
        reactor.control.stop.store(true, Ordering::Relaxed);
        (reactor.wake)();
    }
    for thread in reactors.iter_mut().filter_map(|reactor| reactor.thread.take()) {
        if thread.join().is_err() {
            tracing::error!("a reactor had failed");
        }
    }
}

/// iWARP at sockets that other reactors share.
pub(super) fn iwarp_adapter(
    config: &Config,
    connections: &Arc<Connections>,
    listeners: &[Listener],
) -> Result<Box<dyn Adapter>, StartError> {
    let mut iwarp = IwarpAdapter::new(IwarpConfig {
        crc: config.crc,
        // They are counted with those of all front ends.
        connection_count_max: usize::MAX,
        handshake_count_max: usize::MAX,
        ..IwarpConfig::default()
    })?;
    iwarp.count_in(connections.clone());
    for listener in listeners {
        iwarp.add_listener(listener.tcp.try_clone()?)?;
    }
    Ok(Box::new(iwarp))
}

/// Shared memory at sockets that other reactors share.
pub(super) fn shm_adapter(
    connections: &Arc<Connections>,
    listeners: &[Listener],
) -> Result<Box<dyn Adapter>, StartError> {
    let mut shm = ShmAdapter::new(ShmConfig {
        connections_max: usize::MAX,
        pending_max: usize::MAX,
        shareable_buffers_max: 0,
        ..ShmConfig::default()
    })?;
    shm.count_in(connections.clone());
    for socket in listeners.iter().filter_map(|listener| listener.shm.as_ref()) {
        shm.add_listener(socket.try_clone()?)?;
    }
    Ok(Box::new(shm))
}
