//! iWARP framing: MPA, DDP and RDMAP.
