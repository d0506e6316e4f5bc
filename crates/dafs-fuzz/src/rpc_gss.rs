//! The wire forms of RPCSEC_GSS.
//!
//! Checked: no panic; what decodes is the same after it has been encoded and decoded again; what is
//! refused has a status; the parts of a body lie inside of it.

use dafs_wire::rpc::gss::{
    Credential, InitArgs, InitResults, IntegrityBody, PrivacyBody, ProtectedData,
};
use dafs_wire::xdr::{Decode, Decoder, Encode};

pub fn run(data: &[u8]) {
    match Credential::from_body(data) {
        Ok(credential) => assert_eq!(Credential::from_body(&credential.encoded()), Ok(credential)),
        Err(error) => assert!(!error.to_string().is_empty() && error.status().to_u32() <= 2),
    }
    if let Ok(args) = InitArgs::from_args(data) {
        assert_eq!(InitArgs::from_args(&args.encoded()), Ok(args));
    }
    if let Ok(results) = InitResults::decode(&mut Decoder::new(data)) {
        assert_eq!(InitResults::decode(&mut Decoder::new(&results.encoded())), Ok(results));
    }
    if let Ok(body) = IntegrityBody::from_bytes(data) {
        assert_eq!(IntegrityBody::from_bytes(&body.encoded()), Ok(body));
        assert_eq!(ProtectedData::from_bytes(body.covered()), Ok(body.content()));
        assert!(body.covered().len() + body.mic().len() < data.len());
    }
    if let Ok(body) = PrivacyBody::from_bytes(data) {
        assert_eq!(PrivacyBody::from_bytes(&body.encoded()), Ok(body));
    }
}
