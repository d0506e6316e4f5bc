//! The layouts of rdma-core on 64-bit Linux, checked at compile time.

use super::ffi::{
    ibv_async_event, ibv_bind_mw, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq,
    ibv_device, ibv_device_attr, ibv_mr, ibv_mw, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc, rdma_cm_event, rdma_cm_id,
    rdma_conn_param,
};
use std::mem::{offset_of, size_of};

const _: () = {
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context, ops) == 8);
    assert!(offset_of!(ibv_context_ops, alloc_mw) == 64 - 8);
    assert!(offset_of!(ibv_context_ops, dealloc_mw) == 80 - 8);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 96 - 8);
    assert!(offset_of!(ibv_context_ops, req_notify_cq) == 104 - 8);
    assert!(offset_of!(ibv_context_ops, post_send) == 208 - 8);
    assert!(offset_of!(ibv_context_ops, post_recv) == 216 - 8);
    assert!(offset_of!(ibv_context, cmd_fd) == 264);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_device, transport_type) == 20);
    assert!(offset_of!(ibv_device, name) == 24);
    assert!(size_of::<ibv_pd>() == 16);
    assert!(size_of::<ibv_mr>() == 48);
    assert!(offset_of!(ibv_mr, lkey) == 36);
    assert!(offset_of!(ibv_mr, rkey) == 40);
    assert!(size_of::<ibv_mw>() == 32);
    assert!(offset_of!(ibv_mw, rkey) == 16);
    assert!(offset_of!(ibv_mw, kind) == 24);
    assert!(size_of::<ibv_comp_channel>() == 16);
    assert!(offset_of!(ibv_comp_channel, fd) == 8);
    assert!(offset_of!(ibv_cq, cqe) == 28);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(offset_of!(ibv_qp, state) == 56);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, num_sge) == 24);
    assert!(offset_of!(ibv_send_wr, opcode) == 28);
    assert!(offset_of!(ibv_send_wr, send_flags) == 32);
    assert!(offset_of!(ibv_send_wr, invalidate_rkey) == 36);
    assert!(offset_of!(ibv_send_wr, remote_addr) == 40);
    assert!(offset_of!(ibv_send_wr, rkey) == 48);
    assert!(offset_of!(ibv_send_wr, bind_mw) == 80);
    assert!(size_of::<ibv_bind_mw>() == 48);
    assert!(offset_of!(ibv_bind_mw, mr) == 16);
    assert!(offset_of!(ibv_bind_mw, mw_access_flags) == 40);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, byte_len) == 20);
    assert!(offset_of!(ibv_wc, invalidated_rkey) == 24);
    assert!(offset_of!(ibv_wc, wc_flags) == 36);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(offset_of!(ibv_qp_init_attr, cap) == 32);
    assert!(offset_of!(ibv_qp_init_attr, qp_type) == 52);
    assert!(offset_of!(ibv_qp_init_attr, sq_sig_all) == 56);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(offset_of!(ibv_device_attr, max_mr_size) == 80);
    assert!(offset_of!(ibv_device_attr, vendor_id) == 96);
    assert!(offset_of!(ibv_device_attr, max_qp_wr) == 112);
    assert!(offset_of!(ibv_device_attr, device_cap_flags) == 116);
    assert!(offset_of!(ibv_device_attr, max_sge) == 120);
    assert!(offset_of!(ibv_device_attr, max_cqe) == 132);
    assert!(offset_of!(ibv_device_attr, max_qp_rd_atom) == 144);
    assert!(offset_of!(ibv_device_attr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(ibv_device_attr, phys_port_cnt) == 227);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(offset_of!(ibv_port_attr, max_msg_sz) == 20);
    assert!(offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(offset_of!(ibv_async_event, event_type) == 8);
    assert!(offset_of!(rdma_cm_id, context) == 16);
    assert!(offset_of!(rdma_cm_id, qp) == 24);
    assert!(offset_of!(rdma_cm_id, src_addr) == 32);
    assert!(offset_of!(rdma_cm_id, dst_addr) == 160);
    assert!(size_of::<rdma_conn_param>() == 24);
    assert!(offset_of!(rdma_conn_param, private_data_len) == 8);
    assert!(offset_of!(rdma_conn_param, rnr_retry_count) == 13);
    assert!(offset_of!(rdma_conn_param, qp_num) == 16);
    assert!(offset_of!(rdma_cm_event, listen_id) == 8);
    assert!(offset_of!(rdma_cm_event, event) == 16);
    assert!(offset_of!(rdma_cm_event, status) == 20);
    assert!(offset_of!(rdma_cm_event, conn) == 24);
};
