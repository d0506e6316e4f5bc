//! Messages that a receiver must refuse, and the statuses (DAFS O8, O15, O64).

use dafs_wire::dafs::*;

const ORDER: ByteOrder = ByteOrder::Big;

/// A LOOKUP of the path "usr": offset of the path at 104, array at 112, string at 120.
fn lookup() -> Vec<u8> {
    let mut out = vec![0; 200];
    let request = Request::Lookup(Lookup { dir: FileHandle::ZERO, path: Path::new(&[b"usr"]) });
    let bytes = encode_request(&mut out, ORDER, &RequestHeader::default(), &request).unwrap();
    out.truncate(bytes);
    out
}

fn put(message: &mut [u8], at: usize, value: u32) {
    message[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn refused(message: &[u8]) -> DecodeError {
    let error = decode_request(message, ORDER, 0).unwrap_err();
    if !error.is_fatal() {
        // The server echoes the header, so the header must decode.
        assert!(RequestHeader::decode(message, ORDER).is_ok());
    }
    error
}

#[test]
fn offsets_outside_misaligned_or_overrun() {
    let mut message = lookup();
    put(&mut message, 104, 76);
    assert_eq!(refused(&message), DecodeError::Misaligned { offset: 76, align: 8 });
    put(&mut message, 104, 80_000);
    assert_eq!(refused(&message), DecodeError::Overrun { offset: 80_000, bytes: 0 });
    put(&mut message, 104, 0xffff_fff8);
    assert_eq!(refused(&message).status(), Status::Inval);

    let mut message = lookup();
    put(&mut message, 120, 4);
    assert_eq!(refused(&message), DecodeError::Overrun { offset: 12, bytes: 4 });
    put(&mut message, 120, u32::MAX);
    assert_eq!(refused(&message), DecodeError::Overrun { offset: 12, bytes: u32::MAX as usize });

    let mut message = lookup();
    put(&mut message, 112, 2);
    assert_eq!(refused(&message), DecodeError::Overrun { offset: 16, bytes: 4 });
    put(&mut message, 112, u32::MAX);
    let max = PATH_COMPONENTS_MAX;
    assert_eq!(refused(&message), DecodeError::TooMany { count: u32::MAX as usize, max });
}

#[test]
fn an_offset_of_zero_is_absent() {
    let mut message = lookup();
    put(&mut message, 104, 0);
    let (_, request) = decode_request(&message, ORDER, 0).unwrap();
    let expected = Lookup { dir: FileHandle::ZERO, path: Path::empty() };
    assert_eq!(request, Request::Lookup(expected));
}

#[test]
fn lengths_and_magics_that_end_the_session() {
    let mut message = lookup();
    let length = message.len();
    message.push(0);
    let stated = length as u32;
    assert_eq!(refused(&message), DecodeError::Length { stated, actual: length + 1 });
    assert!(refused(&message).is_fatal());
    message.truncate(length - 1);
    assert!(refused(&message).is_fatal());
    assert!(refused(&message[..39]).is_fatal());
    assert!(refused(&[]).is_fatal());

    let message = lookup();
    let error = decode_request(&message, ByteOrder::Little, 0).unwrap_err();
    assert_eq!(error, DecodeError::Magic { found: 0x5346_4144 });
    assert!(error.is_fatal());
    let error = decode_response(&message, ORDER, Procedure::Lookup).unwrap_err();
    assert_eq!(error, DecodeError::Magic { found: REQUEST_MAGIC });
    assert_eq!(peek_order(b"HTTP/1.1 400 Bad Request, go away please"), None);
    assert_eq!(peek_order(b"DAFS"), None);
}

#[test]
fn a_procedure_that_does_not_exist_keeps_its_header() {
    for number in [0, 99, 107, 120, 121, 154, 171, u32::MAX] {
        let mut message = lookup();
        put(&mut message, 32, number);
        let error = refused(&message);
        assert_eq!(error, DecodeError::UnknownProcedure(number));
        assert_eq!(error.status(), Status::NotSupp);
        let header = RequestHeader::decode(&message, ORDER).unwrap();
        assert_eq!((header.procedure, header.known_procedure()), (number, None));
    }
}

#[test]
fn values_without_a_meaning() {
    let mut out = [0; 200];
    let request = Request::Remove(Remove {
        dir: FileHandle::ZERO,
        name: b"x",
        remove_mode: RemoveMode::CheckOpen,
    });
    let bytes = encode_request(&mut out, ORDER, &RequestHeader::default(), &request).unwrap();
    put(&mut out, 108, 2);
    let error = refused(&out[..bytes]);
    assert_eq!(error, DecodeError::BadValue { field: "RemoveMode", value: 2 });

    // A value that is valid without being included, and an undefined attribute.
    let mut block = [0; 24];
    block[15] = 1;
    assert_eq!(
        Attributes::decode_direct(&block, ORDER),
        Err(DecodeError::BadValue { field: "AttrMask", value: 1 })
    );
    block = [0; 24];
    block[4] = 2;
    assert_eq!(
        Attributes::decode_direct(&block, ORDER),
        Err(DecodeError::BadValue { field: "AttrMask", value: 1 << 25 })
    );
    // A boolean is 0 or 1.
    block = [0; 24];
    (block[7], block[15], block[16]) = (1, 1, 2);
    assert_eq!(
        Attributes::decode_direct(&block, ORDER),
        Err(DecodeError::BadValue { field: "boolean", value: 2 })
    );
    block[16] = 1;
    assert_eq!(Attributes::decode_direct(&block, ORDER).unwrap().named_attr, Some(true));
}

#[test]
fn inline_data_that_is_not_there_or_too_much() {
    let write = WriteInline {
        fh: FileHandle::ZERO,
        state_id: StateId::ZERO,
        offset: 0,
        stable: Stability::Unstable,
        padded_to: None,
        cache_hint: HintWord::NONE,
        data: b"12345678",
    };
    let header = RequestHeader::default();
    let mut out = [0; 300];
    let bytes = encode_request(&mut out, ORDER, &header, &Request::WriteInline(write)).unwrap();
    for stated in [0, 7, 9, u32::MAX] {
        put(&mut out, 120, stated);
        let error = refused(&out[..bytes]);
        assert_eq!(error, DecodeError::InlineData { stated: stated as usize, actual: 8 });
    }
    // Padded data cannot begin inside the fixed section, nor between multiples of 8.
    for at in [0, 128, 132, 137] {
        let write = WriteInline { padded_to: Some(at), ..write };
        assert_eq!(
            encode_request(&mut out, ORDER, &header, &Request::WriteInline(write)),
            Err(EncodeError::PaddingTooShort { at: at as usize, min: 136 })
        );
        assert_eq!(is_valid_inline_write_header_size(at), at == 0);
    }
    assert!(is_valid_inline_write_header_size(136));
}

#[test]
fn bodies_that_do_not_go_with_the_status() {
    let mut out = [0; 300];
    let header = ResponseHeader::default();
    let walked = LookupReply { fh: FileHandle::ZERO, component_count: 0 };
    let body = ErrorBody::Walked(walked);
    let refuse = |out: &mut [u8], status, procedure| {
        encode_error(out, ORDER, &header.with_status(status), procedure, &body)
    };
    assert_eq!(
        refuse(&mut out, Status::NoEnt, Procedure::Remove),
        Err(EncodeError::WrongBody("REMOVE"))
    );
    assert_eq!(
        refuse(&mut out, Status::Ok, Procedure::Lookup),
        Err(EncodeError::WrongBody("LOOKUP"))
    );
    assert_eq!(refuse(&mut out, Status::NoEnt, Procedure::Lookup), Ok(112));
}

#[test]
fn numbers_and_names_are_those_of_the_tables() {
    let unused = [107, 120, 121, 154];
    for number in 0..300 {
        let procedure = Procedure::from_u32(number);
        let exists = (100..=170).contains(&number) && !unused.contains(&number);
        assert_eq!(procedure.map(|found| found as u32), exists.then_some(number));
    }
    assert_eq!(Procedure::GetRootHandle.name(), "GET_ROOT_HANDLE");
    assert_eq!(Procedure::HurryUp.class(), Class::FsModifying);
    assert_eq!(Status::ALL.len(), 81);
    for status in Status::ALL {
        assert_eq!(Status::from_u32(status.code()), *status);
        assert_eq!(status.to_string(), format!("{}: {}", status.name(), status.sentence()));
    }
    assert_eq!(Status::from_u32(4242), Status::Unknown(4242));
    assert_eq!(Status::Unknown(4242).code(), 4242);
}
