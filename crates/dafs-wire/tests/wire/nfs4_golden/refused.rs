use super::*;
use dafs_wire::nfs4::*;

fn decode(text: &str, minor_version: u32) -> Result<String, BadOp> {
    let wire = bytes(text);
    Op::decode(&mut Decoder::new(&wire), minor_version).map(|op| format!("{op:?}"))
}

#[test]
fn unknown_operations_are_told_apart_from_bad_arguments() {
    for number in ["00000000", "00000002", "0000004c", "0000273c", "ffffffff"] {
        assert!(decode(number, 2).unwrap().starts_with("Illegal"), "{number}");
    }
    // A number without arguments.
    assert_eq!(decode("00000035", 1).unwrap_err().number, 53);
    // No number at all.
    assert_eq!(decode("000000", 1).unwrap_err().number, OP_ILLEGAL);
}

#[test]
fn operations_belong_to_minor_versions() {
    let seek = format!("00000045 {STATEID_TEXT} 0000000000000000 00000000");
    assert!(decode(&seek, 1).unwrap().starts_with("Illegal"));
    assert!(decode(&seek, 2).unwrap().starts_with("Seek"));
    assert!(decode("0000003a 00000000", 0).unwrap().starts_with("Illegal"));
    // Operations of 4.0 alone are known, and their arguments are not decoded.
    assert_eq!(decode("0000001e", 1).unwrap(), "Obsolete(Renew)");
    assert_eq!(OpNum::Getxattr.minor_version_min(), 2);
}

#[test]
fn limits_are_kept() {
    let long = |head: &str, bytes: usize, tail: &str| {
        format!("{head} {bytes:08x} {} {tail}", "00".repeat(bytes.next_multiple_of(4)))
    };
    assert!(decode(&long("00000016", 128, ""), 1).is_ok());
    assert_eq!(decode(&long("00000016", 129, ""), 1).unwrap_err().number, 22);
    // A name may be as long as the message: the server refuses one that is too long.
    assert!(decode(&long("0000000f", 70_000, ""), 1).is_ok());
    let owner =
        |bytes| decode(&long(r#"0000002a "verifier""#, bytes, "00000000 00000000 00000000"), 1);
    assert!(owner(1024).is_ok());
    assert_eq!(owner(1025).unwrap_err().number, 42);
    // State-ids: a count that the message cannot hold, and one beyond the limit.
    assert!(decode("00000037 40000000", 1).is_err());
    let many = format!("00000037 00001001 {}", "00".repeat(16 * 4097));
    assert!(decode(&many, 1).is_err());
    let tag = bytes(&long("", 1025, "00000001 00000000"));
    assert!(CompoundArgs::decode(&mut Decoder::new(&tag)).is_err());
    let bitmap = bytes(&format!("00000041 {}", "00".repeat(65 * 4)));
    assert!(Bitmap::decode(&mut Decoder::new(&bitmap)).is_err());
}

#[test]
fn values_without_a_meaning_are_refused_or_kept() {
    // A stability of 3, a lock of type 5, a claim of 7, a boolean of 2.
    for text in [
        format!("00000026 {STATEID_TEXT} 0000000000000000 00000003 00000000"),
        format!("0000000e 00000005 00000000 {STATEID_TEXT} 0000000000000000 0000000000000001"),
        "00000012 00000000 00000001 00000000 0000000000000000 00000000 00000000 00000007".into(),
        "0000003a 00000002".into(),
    ] {
        assert!(decode(&text, 2).is_err(), "{text}");
    }
    // Where the RFCs name a different error, the number is kept. The errors are BADTYPE,
    // UNION_NOTSUPP, INVAL.
    assert!(
        decode("00000006 00000063 00000000 00000000 00000000", 1).unwrap().contains("Other(99)")
    );
    let seek = format!("00000045 {STATEID_TEXT} 0000000000000000 00000009");
    assert!(decode(&seek, 2).unwrap().contains("Other(9)"));
    let bind = r#"00000029 "0123456789abcdef" 00000008 00000000"#;
    assert!(decode(bind, 1).unwrap().contains("Other(8)"));
    assert!(ExchangeFlags::from_bits_retain(0x10).has_unknown());
    assert!(!ExchangeFlags::CONFIRMED_R.has_unknown());
}

#[test]
fn every_status_has_its_number() {
    for status in Status::ALL {
        assert_eq!(Status::from_u32(status.code()), *status);
    }
    assert_eq!(Status::from_u32(10_073), Status::Unknown(10_073));
    assert_eq!(Status::Unknown(10_073).code(), 10_073);
    assert_eq!(Status::Xattr2Big.code(), 10_096);
    assert!(Status::Grace.to_string().ends_with("(GRACE)"));
}
