use super::*;
use dafs_wire::nfs4::*;

fn with_fattr<T>(wire: &[u8], f: impl FnOnce(Fattr<'_>) -> T) -> T {
    let mut d = Decoder::new(wire);
    let decoded = Fattr::decode(&mut d).unwrap();
    assert_eq!(d.remaining(), 0);
    f(decoded)
}

#[test]
fn bitmaps_name_the_lowest_bit_first() {
    check("00000000", &Bitmap::EMPTY);
    check("00000001 80000001", &Bitmap::of(&[0, 31]));
    check("00000002 00000000 00000001", &Bitmap::of(&[32]));
    check("00000003 00000000 00000000 00020000", &Bitmap::of(&[81]));
}

#[test]
fn words_behind_the_third_are_unknown_attributes() {
    let wire = bytes("00000005 00000010 00000000 00000000 00000000 00000001");
    let mask = Bitmap::decode(&mut Decoder::new(&wire)).unwrap();
    assert!(mask.has_beyond() && mask.contains(Attr::Size) && !mask.is_empty());
    let fattr = Fattr { mask, values: &[0; 8] };
    let refused = SetAttributes::decode(&fattr, Attr::KNOWN).unwrap_err();
    assert_eq!(refused, FattrError::Unsupported(None));
    assert_eq!(refused.status(), Status::AttrNotSupp);
    // Zero words change nothing, in any number.
    let wire = bytes("00000005 00000010 00000000 00000000 00000000 00000000");
    assert_eq!(Bitmap::decode(&mut Decoder::new(&wire)), Ok(Bitmap::EMPTY.with(4)));
}

#[test]
fn attributes_that_a_client_sets() {
    // size, mode, owner, owner_group, time_access_set, time_modify_set, mode_set_masked.
    let wire = bytes(
        r#"00000003 00000010 00410032 00000400 00000038
           0000000000001000 000001a4 00000004 "1000" 00000003 "100" 00
           00000000 00000001 0000000000000005 00000006 00000180 000001c0"#,
    );
    with_fattr(&wire, |fattr| {
        let set = SetAttributes::decode(&fattr, Attr::KNOWN).unwrap();
        let wanted = SetAttributes {
            size: Some(4096),
            mode: Some(0o644),
            owner: Some(b"1000"),
            owner_group: Some(b"100"),
            time_access: Some(SetTime::Server),
            time_modify: Some(SetTime::Client(Time { seconds: 5, nanoseconds: 6 })),
            mode_masked: Some(ModeMasked { value: 0o600, mask: 0o700 }),
            ..SetAttributes::default()
        };
        assert_eq!(set, wanted);
        assert_eq!(set.to_values(), fattr.values);
        let mut out = Vec::new();
        set.encode(&mut Encoder::new(&mut out));
        assert_eq!(out, wire);
    });
}

#[test]
fn newer_attributes_that_a_client_sets() {
    // mode_umask, time_deleg_access, time_deleg_modify.
    let wire = bytes(
        "00000003 00000000 00000000 00320000 00000020
         000001b6 00000012 0000000000000001 00000002 0000000000000003 00000004",
    );
    with_fattr(&wire, |fattr| {
        let set = SetAttributes::decode(&fattr, Attr::KNOWN).unwrap();
        assert_eq!(set.mode_umask, Some(ModeUmask { mode: 0o666, umask: 0o022 }));
        assert_eq!(set.time_deleg_access, Some(Time { seconds: 1, nanoseconds: 2 }));
        assert_eq!(set.time_deleg_modify, Some(Time { seconds: 3, nanoseconds: 4 }));
    });
}

#[test]
fn lists_of_entries() {
    let wire = bytes(
        r#"00000002 00001000 04000000 0000004c
           00000001 00000000 00000040 00120081 00000006 "GROUP@" 0000
           00000002 00000002 00000001 00000003 00000002 00000001 "x" 000000
           00000000 00000000 00000001 00000002 "OW" 0000"#,
    );
    with_fattr(&wire, |fattr| {
        let set = SetAttributes::decode(&fattr, Attr::KNOWN).unwrap();
        let acl = set.acl.as_ref().unwrap();
        assert_eq!(acl.aces[0].who, b"GROUP@");
        assert_eq!(acl.aces[0].flags, AceFlags::IDENTIFIER_GROUP);
        assert_eq!(
            acl.aces[0].mask,
            AceMask::READ_DATA
                | AceMask::READ_ATTRIBUTES
                | AceMask::READ_ACL
                | AceMask::SYNCHRONIZE
        );
        let dacl = set.dacl.as_ref().unwrap();
        assert_eq!((dacl.flags, dacl.aces.len()), (AclFlags::PROTECTED, 2));
        assert_eq!(dacl.aces[0].kind, ACE_DENIED);
        assert_eq!(set.to_values(), fattr.values);
    });
}

#[test]
fn an_attribute_that_cannot_be_set_is_named() {
    let only = |attr: Attr| Fattr { mask: Bitmap::EMPTY.with(attr as u32), values: &[] };
    let refuse = |fattr: &Fattr<'_>, supported| {
        SetAttributes::decode(fattr, supported).map(|_| ()).unwrap_err()
    };
    let error = refuse(&only(Attr::Fileid), Attr::KNOWN);
    assert_eq!(error, FattrError::ReadOnly(Attr::Fileid));
    assert_eq!(error.status(), Status::Inval);
    let error = refuse(&only(Attr::Mimetype), Attr::KNOWN.without(32));
    assert_eq!(error, FattrError::Unsupported(Some(32)));
    let error = refuse(&Fattr { mask: Bitmap::EMPTY.with(87), values: &[] }, Attr::KNOWN);
    assert_eq!(error, FattrError::Unsupported(Some(87)));
    // A truncated value, and one with bytes after it.
    let error = refuse(&only(Attr::Size), Attr::KNOWN);
    assert_eq!(error.status(), Status::BadXdr);
    let long = Fattr { mask: Bitmap::EMPTY.with(4), values: &[0; 12] };
    assert_eq!(refuse(&long, Attr::KNOWN).status(), Status::BadXdr);
}

#[test]
fn attributes_that_a_client_reads() {
    // type, change, size, fsid, fileid, mode, numlinks, owner, rawdev, time_modify.
    let wire = bytes(
        r#"00000002 0010011a 0020021a 00000050
           00000001 0000000000000011 0000000000001000
           0000000000000001 0000000000000002 0000000000000022
           000001a4 00000001 00000001 "0" 000000
           00000008 00000001 0000000000000005 00000006"#,
    );
    with_fattr(&wire, |fattr| {
        let read = Attributes::decode(&fattr).unwrap();
        let wanted = Attributes {
            kind: Some(FileType::Regular),
            change: Some(17),
            size: Some(4096),
            fsid: Some(Fsid { major: 1, minor: 2 }),
            fileid: Some(34),
            mode: Some(0o644),
            numlinks: Some(1),
            owner: Some(b"0"),
            rawdev: Some(DeviceNumbers { major: 8, minor: 1 }),
            time_modify: Some(Time { seconds: 5, nanoseconds: 6 }),
            ..Attributes::default()
        };
        assert_eq!(read, wanted);
        let mut out = Vec::new();
        read.encode(&mut Encoder::new(&mut out));
        assert_eq!(out, wire);
    });
}

#[test]
fn a_server_writes_attribute_by_attribute() {
    let mut out = Vec::new();
    // Number 87 is undefined, so it is left out.
    let mask = Bitmap::of(&[1, 4, 87]);
    encode_fattr(&mut Encoder::new(&mut out), mask, |attr, e| match attr {
        Attr::Type => FileType::Directory.encode(e),
        Attr::Size => e.u64(6),
        other => panic!("{other} was not asked for"),
    });
    assert_eq!(out, bytes("00000001 00000012 0000000c 00000002 0000000000000006"));
}

#[test]
fn open_arguments() {
    check(
        "00000001 0000000e 00000001 0000000f 00000001 00320038 00000001 0000007f
         00000001 0000000f",
        &OpenArguments {
            share_access: Bitmap::of(&[1, 2, 3]),
            share_deny: Bitmap::of(&[0, 1, 2, 3]),
            share_access_want: Bitmap::of(&[3, 4, 5, 17, 20, 21]),
            open_claim: Bitmap::of(&[0, 1, 2, 3, 4, 5, 6]),
            create_mode: Bitmap::of(&[0, 1, 2, 3]),
        },
    );
}

#[test]
fn numbers_and_names_are_those_of_the_rfcs() {
    for (attr, number, name) in [
        (Attr::RdattrError, 11, "rdattr_error"),
        (Attr::MountedOnFileid, 55, "mounted_on_fileid"),
        (Attr::SuppattrExclcreat, 75, "suppattr_exclcreat"),
        (Attr::SecLabel, 80, "sec_label"),
        (Attr::XattrSupport, 82, "xattr_support"),
        (Attr::OpenArguments, 86, "open_arguments"),
    ] {
        assert_eq!((attr.number(), attr.name()), (number, name));
    }
    assert_eq!(Attr::ALL.len(), 87);
    assert!(Attr::ALL.iter().enumerate().all(|(at, attr)| attr.number() as usize == at));
    assert_eq!(SetAttributes::KNOWN, Attr::SETTABLE);
    assert_eq!(Attributes::KNOWN, Attr::KNOWN);
    assert_eq!(Attr::GETTABLE.or(Attr::SETTABLE), Attr::KNOWN);
}
