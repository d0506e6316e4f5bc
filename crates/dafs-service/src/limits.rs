//! Every bound of the service, in one place.

/// Clients known at once. A client that is not known cannot hold state.
pub const CLIENT_COUNT_MAX: usize = 65_536;

/// Bytes of a client's own name.
pub const CLIENT_NAME_BYTES_MAX: usize = 1024;

/// Opens of one client.
pub const OPENS_PER_CLIENT_MAX: usize = 65_536;

/// How often an open looks again when others make and remove its name meanwhile.
pub(crate) const OPEN_TRIES_MAX: usize = 16;

/// Opens of all clients. Each holds a descriptor of the process.
pub const OPENS_MAX: usize = 500_000;

/// Bytes of an open owner's name.
pub const OWNER_BYTES_MAX: usize = 1024;

/// Components of a path in one lookup.
pub const PATH_COMPONENTS_MAX: usize = 256;

/// Time between two sweeps of the stores, in nanoseconds.
pub const SWEEP_EVERY_NS: u64 = 10_000_000_000;

const _: () = assert!(CLIENT_NAME_BYTES_MAX >= OWNER_BYTES_MAX);
