//! Messages written by position, and their comparison with the codec.

use dafs_wire::dafs::*;

pub(crate) const ORDERS: [ByteOrder; 2] = [ByteOrder::Big, ByteOrder::Little];
pub(crate) const DIR: FileHandle = FileHandle { fs: [0x11; 16], file: [0x22; 48] };
pub(crate) const FILE: FileHandle = FileHandle { fs: [0x11; 16], file: [0x33; 48] };
pub(crate) const PADDING: u32 = 256;

/// A message that is written by position.
pub(crate) struct Layout {
    pub(crate) bytes: Vec<u8>,
    pub(crate) order: ByteOrder,
}

impl Layout {
    /// A request with the header of `header()`, and zeros after it.
    pub(crate) fn request(order: ByteOrder, procedure: u32, bytes: usize) -> Self {
        let mut layout = Self { bytes: vec![0; bytes], order };
        layout.u32(0, 0x4441_4653).u32(4, 1).u16(8, 8).u16(10, 0x0a).u16(12, 3).u16(14, 0x0102);
        layout.raw(16, b"analyzer").raw(28, &[0, 0, 0, 7]);
        layout.u32(32, procedure).u32(36, bytes as u32);
        layout
    }

    /// A reply to that request.
    pub(crate) fn reply(order: ByteOrder, status: u32, bytes: usize) -> Self {
        let mut layout = Self { bytes: vec![0; bytes], order };
        layout.u32(0, 0x4441_4652).u32(4, 1).u16(8, 64).u16(10, 0).u16(12, 3).u16(14, 0x0102);
        layout.raw(16, b"analyzer").u32(28, status).u32(32, bytes as u32);
        layout
    }

    pub(crate) fn raw(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    /// A string: count and octets.
    pub(crate) fn string(&mut self, at: usize, text: &[u8]) -> &mut Self {
        self.u32(at, text.len() as u32).raw(at + 4, text)
    }

    pub(crate) fn handle(&mut self, at: usize, handle: FileHandle) -> &mut Self {
        self.raw(at, &handle.fs).raw(at + 16, &handle.file)
    }

    /// A direct_op_buffer.
    pub(crate) fn buffer(&mut self, at: usize, buffer: DirectBuffer) -> &mut Self {
        self.u64(at, buffer.address).u32(at + 8, buffer.byte_count).u32(at + 12, buffer.context)
    }
}

pub(crate) fn header() -> RequestHeader {
    RequestHeader {
        desired_nreq: 8,
        chain_flags: ChainFlags::BACK | ChainFlags::FH,
        stream_id: 3,
        seq_number: 0x0102,
        analyzer: Analyzer(*b"analyzer"),
        cred_handle: CredHandle(7),
        ..RequestHeader::default()
    }
}

/// Checks that the request encodes to the layout, and the layout decodes to the request.
pub(crate) fn check_request(layout: &Layout, request: Request<'_>) {
    let mut out = vec![0xff; 4096];
    let bytes = encode_request(&mut out, layout.order, &header(), &request).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (found, decoded) = decode_request(&layout.bytes, layout.order, PADDING).unwrap();
    assert_eq!(found.chain_flags, header().chain_flags);
    assert_eq!(found.request_len as usize, layout.bytes.len());
    assert_eq!(decoded, request);
}

pub(crate) fn check_reply(layout: &Layout, reply: Reply<'_>) {
    let mut out = vec![0xff; 4096];
    let answer = ResponseHeader::answering(&header(), 64);
    let bytes = encode_response(&mut out, layout.order, &answer, &reply).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (found, outcome) = decode_response(&layout.bytes, layout.order, reply.procedure()).unwrap();
    assert_eq!((found.target_nreq, found.status), (64, Status::Ok));
    assert_eq!(outcome, Outcome::Ok(reply));
}

pub(crate) fn check_error(
    layout: &Layout,
    procedure: Procedure,
    status: Status,
    body: ErrorBody<'_>,
) {
    let mut out = vec![0xff; 4096];
    let answer = ResponseHeader::answering(&header(), 64).with_status(status);
    let bytes = encode_error(&mut out, layout.order, &answer, procedure, &body).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (_, outcome) = decode_response(&layout.bytes, layout.order, procedure).unwrap();
    assert_eq!(outcome, Outcome::Error { status, body });
}

#[track_caller]
pub(crate) fn assert_bytes(found: &[u8], expected: &[u8]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("byte {at}: {:02x?}, expected {:02x?}", &found[at..], &expected[at..]);
    }
    assert_eq!(found.len(), expected.len(), "length");
}
