//! The head of an HTTP/1.1 message, as request and as response.
//!
//! Checked: no panic; a head has the same length however much has come behind it; the fields of a head that is
//! taken make a head with the same fields; no field with one value is there twice.

use dafs_wire::http::{FIELDS_MAX, Fields, HEAD_BYTES_MAX, Request, Response, head_bytes};

pub fn run(data: &[u8]) {
    let Ok(Some(bytes)) = head_bytes(data) else { return };
    assert!(bytes <= HEAD_BYTES_MAX);
    let head = &data[..bytes];
    assert_eq!(head_bytes(head), Ok(Some(bytes)));
    assert_eq!(head_bytes(&head[..bytes - 1]), Ok(None));
    if let Ok(request) = Request::parse(head) {
        let line = format!("{} {} HTTP/1.1", request.method, request.target);
        let again = written(&line, &request.fields);
        // Blanks that are left out make it shorter, never longer.
        assert!(again.len() <= head.len() + request.fields.iter().count());
        if again.len() <= HEAD_BYTES_MAX {
            let parsed = Request::parse(again.as_bytes()).unwrap();
            assert_eq!((parsed.method, parsed.target), (request.method, request.target));
            assert!(parsed.fields.iter().eq(request.fields.iter()));
            assert_eq!(parsed.fields.content_bytes(), request.fields.content_bytes());
        }
    }
    if let Ok(response) = Response::parse(head) {
        assert!(response.status <= 999 && response.fields.iter().count() <= FIELDS_MAX);
    }
}

/// A head with this first line and these fields.
fn written(line: &str, fields: &Fields<'_>) -> String {
    let hosts = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    assert!(hosts.count() <= 1 && fields.iter().count() <= FIELDS_MAX);
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{line}\r\n{lines}\r\n")
}
