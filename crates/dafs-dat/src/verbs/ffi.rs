//! The binary interface of libibverbs and librdmacm, restricted to the parts that this provider
//! uses.
//!
//! rdma-core keeps these layouts stable within a shared object version (`libibverbs.so.1`,
//! `librdmacm.so.1`), so they are declared here, and the build needs no headers. Posting and
//! polling have no symbols: the headers call them through the table of operations in the context.
//!
//! Invariants
//! * Sizes and offsets are those of rdma-core on a 64-bit Linux, checked at compile time in `layout`.
//! * Structures that the library allocates are declared up to the last used field, and only
//!   accessed by pointer. Structures that this provider allocates are declared completely.

#![allow(non_camel_case_types)] // the names of the C interface

use libc::{c_char, c_int, c_uint, c_void, sockaddr, sockaddr_storage};
use std::ptr::null_mut;

pub(super) type ibv_mr_access = c_int;
pub(super) const ACCESS_LOCAL_WRITE: ibv_mr_access = 1;
pub(super) const ACCESS_REMOTE_WRITE: ibv_mr_access = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: ibv_mr_access = 1 << 2;
pub(super) const ACCESS_MW_BIND: ibv_mr_access = 1 << 4;

/// A device with memory windows of type 2B: a window serves one queue pair.
pub(super) const DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
pub(super) const MW_TYPE_2: c_int = 2;

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPS_ERR: c_int = 6;
pub(super) const QP_STATE: c_int = 1;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const TRANSPORT_IB: c_int = 0;
pub(super) const TRANSPORT_IWARP: c_int = 1;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_BIND_MW: c_int = 8;
pub(super) const WR_SEND_WITH_INV: c_int = 9;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;

pub(super) const WC_SUCCESS: c_int = 0;
pub(super) const WC_LOC_LEN_ERR: c_int = 1;
pub(super) const WC_WR_FLUSH_ERR: c_int = 5;
pub(super) const WC_REM_INV_REQ_ERR: c_int = 9;
pub(super) const WC_REM_ACCESS_ERR: c_int = 10;
pub(super) const WC_REM_OP_ERR: c_int = 11;
pub(super) const WC_RETRY_EXC_ERR: c_int = 12;
pub(super) const WC_RNR_RETRY_EXC_ERR: c_int = 13;
pub(super) const WC_REM_ABORT_ERR: c_int = 16;
pub(super) const WC_RESP_TIMEOUT_ERR: c_int = 20;
pub(super) const WC_WITH_INV: c_uint = 1 << 3;

pub(super) const EVENT_QP_FATAL: c_int = 1;
pub(super) const EVENT_QP_REQ_ERR: c_int = 2;
pub(super) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(super) const EVENT_COMM_EST: c_int = 4;

pub(super) const PS_TCP: c_int = 0x0106;

pub(super) const CM_ADDR_RESOLVED: c_int = 0;
pub(super) const CM_ADDR_ERROR: c_int = 1;
pub(super) const CM_ROUTE_RESOLVED: c_int = 2;
pub(super) const CM_ROUTE_ERROR: c_int = 3;
pub(super) const CM_CONNECT_REQUEST: c_int = 4;
pub(super) const CM_CONNECT_ERROR: c_int = 6;
pub(super) const CM_UNREACHABLE: c_int = 7;
pub(super) const CM_REJECTED: c_int = 8;
pub(super) const CM_ESTABLISHED: c_int = 9;
pub(super) const CM_DISCONNECTED: c_int = 10;
pub(super) const CM_DEVICE_REMOVAL: c_int = 11;
pub(super) const CM_TIMEWAIT_EXIT: c_int = 15;

/// `IB_CM_REJ_INVALID_SERVICE_ID`: there is no listener.
pub(super) const REJ_INVALID_SERVICE: c_int = 8;

/// `IB_CM_REJ_CONSUMER_DEFINED`: the listening program rejected the connection.
pub(super) const REJ_CONSUMER_DEFINED: c_int = 28;

type Unused = Option<unsafe extern "C" fn()>;

/// Operations of a device. Every entry is a pointer; those without a name here are not called.
#[repr(C)]
pub(super) struct ibv_context_ops {
    _before_alloc_mw: [Unused; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    _bind_mw: Unused,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    _before_poll_cq: Unused,
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_post_send: [Unused; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _rest: [Unused; 5],
}

#[repr(C)]
pub(super) struct ibv_context {
    pub(super) device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    // A mutex and a pointer follow.
}

#[repr(C)]
pub(super) struct ibv_device {
    _ops: [*mut c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; 64],
    // More names follow.
}

#[repr(C)]
pub(super) struct ibv_pd {
    pub(super) context: *mut ibv_context,
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct ibv_mr {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct ibv_mw {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) rkey: u32,
    pub(super) handle: u32,
    pub(super) kind: c_int,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    pub(super) context: *mut ibv_context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
    // A mutex, a condition and counters follow.
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ibv_pd,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_int,
    pub(super) qp_type: c_int,
    // A mutex, a condition and a counter follow.
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// The operands of a bind of a memory window.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_bind_mw {
    pub(super) mw: *mut ibv_mw,
    /// The key that the window gets.
    pub(super) rkey: u32,
    pub(super) mr: *mut ibv_mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: c_uint,
}

impl ibv_bind_mw {
    /// Those of any other request.
    pub(super) const NONE: Self =
        Self { mw: null_mut(), rkey: 0, mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
}

/// A send, write, read or bind. The union of the operands of the first three is declared with its RDMA
/// arm, and that of the last with the arm of memory windows; the other arms are never set.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) invalidate_rkey: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) _between: [u32; 7],
    pub(super) bind_mw: ibv_bind_mw,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_recv_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) invalidated_rkey: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// Only the state is used.
#[repr(C)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_int,
    pub(super) _rest: [c_int; 35],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) _between: [c_int; 16],
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
    pub(super) _end: u32,
}

/// The layout of the current library; the symbol itself writes a little less.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

#[repr(C)]
pub(super) struct ibv_async_event {
    /// A queue pair, a completion queue or a port number, as the type states.
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

#[repr(C)]
pub(super) struct rdma_event_channel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct rdma_cm_id {
    pub(super) verbs: *mut ibv_context,
    pub(super) channel: *mut rdma_event_channel,
    pub(super) context: *mut c_void,
    pub(super) qp: *mut ibv_qp,
    pub(super) src_addr: sockaddr_storage,
    pub(super) dst_addr: sockaddr_storage,
    // The path and the library's own follow.
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma_conn_param {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

#[repr(C)]
pub(super) struct rdma_cm_event {
    pub(super) id: *mut rdma_cm_id,
    pub(super) listen_id: *mut rdma_cm_id,
    pub(super) event: c_int,
    pub(super) status: c_int,
    /// One arm of a union; the other is for datagrams.
    pub(super) conn: rdma_conn_param,
    // More follows.
}

pub(super) type AllocPd = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
pub(super) type DeallocPd = unsafe extern "C" fn(*mut ibv_pd) -> c_int;
pub(super) type RegMr =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, ibv_mr_access) -> *mut ibv_mr;
pub(super) type DeregMr = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
pub(super) type CreateCompChannel = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
pub(super) type DestroyCompChannel = unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
pub(super) type CreateCq = unsafe extern "C" fn(
    *mut ibv_context,
    c_int,
    *mut c_void,
    *mut ibv_comp_channel,
    c_int,
) -> *mut ibv_cq;
pub(super) type DestroyCq = unsafe extern "C" fn(*mut ibv_cq) -> c_int;
pub(super) type GetCqEvent =
    unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
pub(super) type AckCqEvents = unsafe extern "C" fn(*mut ibv_cq, c_uint);
pub(super) type QueryDevice = unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
pub(super) type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
pub(super) type QueryQp =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
pub(super) type GetAsyncEvent =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
pub(super) type AckAsyncEvent = unsafe extern "C" fn(*mut ibv_async_event);
pub(super) type ForkInit = unsafe extern "C" fn() -> c_int;
pub(super) type StatusText = unsafe extern "C" fn(c_int) -> *const c_char;

pub(super) type GetDevices = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_context;
pub(super) type CreateEventChannel = unsafe extern "C" fn() -> *mut rdma_event_channel;
pub(super) type DestroyEventChannel = unsafe extern "C" fn(*mut rdma_event_channel);
pub(super) type CreateId = unsafe extern "C" fn(
    *mut rdma_event_channel,
    *mut *mut rdma_cm_id,
    *mut c_void,
    c_int,
) -> c_int;
pub(super) type DestroyId = unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
pub(super) type BindAddr = unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
pub(super) type ResolveAddr =
    unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
pub(super) type ResolveRoute = unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
pub(super) type CreateQp =
    unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
pub(super) type DestroyQp = unsafe extern "C" fn(*mut rdma_cm_id);
pub(super) type Connect = unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
pub(super) type Listen = unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
pub(super) type Reject = unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
pub(super) type Notify = unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
pub(super) type Disconnect = unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
pub(super) type GetCmEvent =
    unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
pub(super) type AckCmEvent = unsafe extern "C" fn(*mut rdma_cm_event) -> c_int;
