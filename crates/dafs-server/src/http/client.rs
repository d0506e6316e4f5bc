//! The client of the port for administration.

use super::{Line, Secured, Timed};
use crate::admin::{AdminError, AdminReply, AdminRequest};
use crate::limits::{ADMIN_ANSWER_BYTES_MAX, ADMIN_TIMEOUT};
use dafs_tls::ClientFiles;
use dafs_wire::http::{Response, head_bytes};
use serde_json::Value;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A server that is administered over HTTP: `http://HOST:PORT` on this host, or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminServer {
    host: String,
    port: u16,
    is_secure: bool,
}

impl FromStr for AdminServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write http://127.0.0.1:PORT or https://HOST:PORT".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(form)?;
        let is_secure = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(form()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or_else(form)?;
        let port = port.parse::<u16>().map_err(|_| form())?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = inner.unwrap_or(host).to_owned();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_name) || (host.contains(':') && inner.is_none())
        {
            return Err(form());
        }
        let is_loopback = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if !is_secure && !is_loopback {
            return Err("the token would travel in clear text; write https://".to_owned());
        }
        Ok(Self { host, port, is_secure })
    }
}

impl AdminServer {
    /// True for https.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        // The name localhost, too, has to lead to this host.
        for address in addresses.filter(|address| self.is_secure || address.ip().is_loopback()) {
            match TcpStream::connect_timeout(&address, ADMIN_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Sends a request to the server at an address. For https the certificate of the server has to be from these
/// authorities.
///
/// # Errors
/// The server cannot be reached, or does not take the token.
pub fn ask(
    server: &AdminServer,
    token: &str,
    authorities: Option<PathBuf>,
    request: &AdminRequest,
) -> Result<AdminReply, AdminError> {
    let unreachable = |error| AdminError::NoServer { server: server.authority(), error };
    let stream = server.connect().map_err(unreachable)?;
    let mut socket = Timed::within(&stream, ADMIN_TIMEOUT);
    let mut line = match (server.is_secure, authorities) {
        (false, _) => Line::Clear,
        (true, None) => {
            let text = "name the authorities that vouch for it";
            return Err(unreachable(io::Error::other(text)));
        }
        (true, Some(authorities)) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            let files = ClientFiles { authorities, ..ClientFiles::default() };
            let side = files.load(now);
            let side = side.map_err(|error| unreachable(io::Error::other(error.to_string())))?;
            let secured = Secured::connect(&mut socket, &Arc::new(side), &server.host);
            Line::Secured(Box::new(secured.map_err(unreachable)?))
        }
    };
    let sent = message(server, token, request).map_err(AdminError::NoAnswer)?;
    line.finish(&mut socket, &sent).map_err(AdminError::NoAnswer)?;
    let (status, content) = answer(&mut line, &mut socket).map_err(AdminError::NoAnswer)?;
    match (status, serde_json::from_slice(&content)) {
        (200 | 422, Ok(reply)) => Ok(reply),
        (200 | 422, Err(error)) => Err(AdminError::NoAnswer(io::Error::other(error))),
        (_, Ok(AdminReply::Failed(text))) => Err(AdminError::Refused { status, text }),
        _ => Err(AdminError::Refused { status, text: "the server is none of dafs".to_owned() }),
    }
}

/// Returns a whole message with a request.
fn message(server: &AdminServer, token: &str, request: &AdminRequest) -> io::Result<Vec<u8>> {
    let (name, content) = match serde_json::to_value(request).map_err(io::Error::other)? {
        Value::String(name) => (name, Vec::new()),
        Value::Object(fields) => {
            // INVARIANT: serde writes a request with fields as an object with one member.
            let (name, fields) = fields.into_iter().next().unwrap_or_default();
            (name, serde_json::to_vec(&fields).map_err(io::Error::other)?)
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let head = format!(
        "POST /v1/{name} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        server.authority(),
        content.len()
    );
    Ok([head.as_bytes(), content.as_slice()].concat())
}

/// Reads a whole answer: its status and its content.
fn answer(line: &mut Line, socket: &mut Timed<'_>) -> io::Result<(u16, Vec<u8>)> {
    let mut received = Vec::new();
    let mut more = |received: &mut Vec<u8>| match line.read(socket, received)? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Ok(()),
    };
    let bytes = loop {
        match head_bytes(&received).map_err(io::Error::other)? {
            Some(bytes) => break bytes,
            None => more(&mut received)?,
        }
    };
    let mut content = received.split_off(bytes);
    let response = Response::parse(&received).map_err(io::Error::other)?;
    let wanted = response.fields.content_bytes().map_err(io::Error::other)?;
    let wanted = usize::try_from(wanted).ok().filter(|&bytes| bytes <= ADMIN_ANSWER_BYTES_MAX);
    let wanted = wanted.ok_or_else(|| io::Error::other("the answer is too large"))?;
    while content.len() < wanted {
        more(&mut content)?;
    }
    content.truncate(wanted);
    Ok((response.status, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_a_url_that_keeps_the_token_secret() {
        let authority = |text: &str| text.parse::<AdminServer>().map(|server| server.authority());
        assert_eq!(authority("http://127.0.0.1:9480").unwrap(), "127.0.0.1:9480");
        assert_eq!(authority("http://localhost:9480/").unwrap(), "localhost:9480");
        assert_eq!(authority("https://[2001:db8::1]:9480").unwrap(), "[2001:db8::1]:9480");
        assert_eq!(authority("https://nas.example:9480").unwrap(), "nas.example:9480");
        for wrong in [
            "nas:9480",
            "https://nas",
            "dafs://nas:1",
            "https://:1",
            "https://a b:1",
            "https://a/b:1",
            "https://2001:db8::1:1",
            "https://a@b:1",
            "https://nas:99999",
        ] {
            assert!(authority(wrong).unwrap_err().contains("PORT"), "{wrong}");
        }
        assert!(authority("http://nas.example:9480").unwrap_err().contains("https"));
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let server: AdminServer = "http://127.0.0.1:9480".parse().unwrap();
        let written = message(&server, "secret", &AdminRequest::Expire { client: 7 }).unwrap();
        let bytes = head_bytes(&written).unwrap().unwrap();
        let head = dafs_wire::http::Request::parse(&written[..bytes]).unwrap();
        assert_eq!((head.method, head.target), ("POST", "/v1/expire"));
        assert_eq!(head.fields.get("authorization"), Some("Bearer secret"));
        assert_eq!(&written[bytes..], b"{\"client\":7}");
        assert_eq!(head.fields.content_bytes().unwrap(), 12);
        let written = message(&server, "secret", &AdminRequest::Reload).unwrap();
        assert!(written.starts_with(b"POST /v1/reload HTTP/1.1\r\n"));
    }
}
