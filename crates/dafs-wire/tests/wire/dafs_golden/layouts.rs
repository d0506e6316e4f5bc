//! Layouts, optimistic reads and the end of reclaims, extensions: messages as in the tables of `docs/protocol.md`.

use super::layout::*;
use dafs_wire::dafs::*;

const DEVICE: DeviceId = *b"sixteen of these";

#[test]
fn a_layout_is_asked_for_and_told() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 161, 40 + 80);
        layout.handle(40, FILE).raw(104, b"state-id").u32(112, 2);
        let (fh, state_id) = (FILE, StateId(*b"state-id"));
        let mode = LayoutMode::ReadWrite;
        check_request(&layout, Request::XLayoutGet(XLayoutGet { fh, state_id, mode }));

        let mut layout = Layout::reply(order, 0, 40 + 32 + 8 + 2 * 80);
        layout.raw(40, b"state-id").u32(48, 3).u32(52, 1).u32(56, 1).u32(60, 65536).u32(64, 2);
        layout.u32(68, 32).u32(72, 2);
        layout.raw(80, &DEVICE).handle(96, FILE).raw(160, &DEVICE).handle(176, DIR);
        let component = |fh| LayoutComponent { device: DEVICE, fh };
        let components = [component(FILE), component(DIR)];
        let reply = XLayoutGetReply {
            state_id,
            seqid: 3,
            kind: LayoutKind::Stripes,
            packing: LayoutPacking::Sparse,
            unit_bytes: 65536,
            first_place: 2,
            components: Seq::new(&components),
        };
        check_reply(&layout, Reply::XLayoutGet(reply));
    }
}

#[test]
fn a_layout_commit_has_its_golden_bytes() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 162, 40 + 88);
        layout.handle(40, FILE).raw(104, b"state-id").u32(112, 3).u32(116, 1).u64(120, 1 << 40);
        let commit = XLayoutCommit {
            fh: FILE,
            state_id: StateId(*b"state-id"),
            seqid: 3,
            reclaim: true,
            end: 1 << 40,
        };
        check_request(&layout, Request::XLayoutCommit(commit));
        let mut layout = Layout::reply(order, 0, 40 + 16);
        layout.u64(40, 1 << 40).u64(48, 77);
        let reply = XLayoutCommitReply { size: 1 << 40, change: 77 };
        check_reply(&layout, Reply::XLayoutCommit(reply));
    }
}

#[test]
fn layouts_are_recalled_and_given_back() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 163, 40 + 88 + 8 + 24);
        layout.handle(40, FILE).raw(104, b"state-id").u32(112, 4).u32(116, 1).u32(120, 88);
        layout.u32(128, 1).raw(136, &DEVICE).u32(152, 28).u32(156, 1);
        let (fh, state_id, seqid) = (FILE, StateId(*b"state-id"), 4);
        let scope = LayoutScope::File;
        let errors = [LayoutError { device: DEVICE, status: Status::NoSpc, writing: true }];
        let errors = Seq::new(&errors);
        let back = XLayoutReturn { fh, state_id, seqid, scope, errors };
        check_request(&layout, Request::XLayoutReturn(back));
        check_reply(&Layout::reply(order, 0, 40), Reply::XLayoutReturn);

        let mut layout = Layout::request(order, 165, 40 + 80);
        layout.handle(40, FILE).raw(104, b"state-id").u32(112, 4).u32(116, 3);
        let recall = XBcLayoutRecall { fh, state_id, seqid, scope: LayoutScope::All };
        check_request(&layout, Request::XBcLayoutRecall(recall));
        check_reply(&Layout::reply(order, 0, 40), Reply::XBcLayoutRecall);
    }
}

#[test]
fn devices_are_told_with_a_ticket() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 164, 40 + 16);
        layout.raw(40, &DEVICE);
        check_request(&layout, Request::XNodeInfo(XNodeInfo { device: DEVICE }));

        // Positions from the start of the body: the pattern at 16, the array of one server at 32,
        // then the ticket. The server's addresses are at 40 (the array's 8) and hold a string at 48
        // (their 8).
        let mut layout = Layout::reply(order, 0, 40 + 64 + 4 + 6);
        layout.u32(40, 16).u32(44, 32).u32(48, 64);
        layout.u32(56, 2).u32(60, 0).u32(64, 0);
        layout.u32(72, 1).u32(76, 8).u32(80, 1).u32(84, 8).string(88, b"[::1]:7070");
        layout.string(104, b"ticket");
        let addresses: [&[u8]; 1] = [b"[::1]:7070"];
        let servers = [LayoutServer { addresses: Seq::new(&addresses) }];
        let reply = XNodeInfoReply {
            pattern: Seq::new(&[0, 0]),
            servers: Seq::new(&servers),
            ticket: b"ticket",
        };
        check_reply(&layout, Reply::XNodeInfo(reply));
    }
}

#[test]
fn the_place_of_exposed_blocks_has_its_golden_bytes() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 169, 40 + 104);
        layout.handle(40, FILE).raw(104, b"state-id").u64(112, 1 << 33).u64(120, 9);
        layout.u32(128, 64).u32(132, 3).u32(136, 1);
        let (fh, state_id) = (FILE, StateId(*b"state-id"));
        let (window, windows, exposure, known, small) = (1 << 33, 64, 9, 3, true);
        let get = XExposeGet { fh, state_id, window, windows, exposure, known, small };
        check_request(&layout, Request::XExposeGet(get));

        let mut layout = Layout::reply(order, 0, 40 + 24 + 8 + 16 + 8 + 24);
        layout.u64(40, 9).u32(48, 24).u32(52, 48).u64(56, 16 * 77);
        layout.u32(64, 1).u64(72, 1 << 33).u32(80, 2).u32(84, 15);
        layout.u32(88, 1).u64(96, 0x7fff_0000_1000).u32(104, 65535).u32(108, 0xdead_beef);
        layout.u32(112, 1 << 20).u32(116, 2);
        let windows = [ExposedWindow { window: 1 << 33, segment: 2, page: 15 }];
        let segments = [ExposedSegment {
            address: 0x7fff_0000_1000,
            number: 65535,
            key: 0xdead_beef,
            bytes: 1 << 20,
            kind: ExposedKind::Index,
        }];
        let (windows, segments) = (Seq::new(&windows), Seq::new(&segments));
        let reply = XExposeGetReply { exposure: 9, windows, segments, base: 16 * 77 };
        check_reply(&layout, Reply::XExposeGet(reply));
    }
}

#[test]
fn the_end_of_reclaims_is_a_header_alone() {
    for order in ORDERS {
        check_request(&Layout::request(order, 170, 40), Request::XReclaimComplete);
        check_reply(&Layout::reply(order, 0, 40), Reply::XReclaimComplete);
    }
}
