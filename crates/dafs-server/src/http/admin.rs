//! Administration for other machines: the requests of the socket, over HTTP.
//!
//! `POST /v1/NAME` carries out a request with the fields in its JSON content; `GET` does for requests that have
//! none and change nothing. The answer is that of the socket. `GET /` returns the page of `page.rs`.
//!
//! Invariants
//! * No request is carried out without the token, nor for a page of another site: `rules.rs`. The page needs no
//!   token, and is no request: it has nothing of this server.
//! * Content is read only after the token was right, up to a bound. A peer that is slow with its request or its
//!   answer ends at a deadline, and makes room for another one while it has shown no token.

use super::page::Page;
use super::rules::{Refusal, Refusals, Status, admit, own_host, refusal};
use super::token::Token;
use super::{Line, Port, Secured, Timed, finish};
use crate::admin::{AdminHandler, AdminReply, AdminRequest, answer_of};
use crate::limits::{ADMIN_HTTP_PEERS, ADMIN_HTTP_TIMEOUT, ADMIN_REQUEST_BYTES_MAX};
use crate::server::StartError;
use dafs_dat::connections::{Admitted, Origin};
use dafs_mem::Mutex;
use dafs_rpc::tls::ServerTls;
use dafs_wire::http::{Request, head_bytes};
use serde_json::{Map, Value};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Requests without fields, which change nothing.
const READS: [&str; 7] = ["clients", "exposed", "locks", "nodes", "sessions", "status", "users"];

/// All others.
const ORDERS: [&str; 11] = [
    "drain",
    "expire",
    "fence",
    "fences",
    "layout",
    "reload",
    "remove_user",
    "repair",
    "replace",
    "scrub",
    "set_user",
];

/// The port. It is closed when this is dropped.
pub(crate) struct AdminPort {
    address: SocketAddr,
    is_secure: bool,
    _port: Port,
}

/// The content that a peer wants.
enum Wanted {
    Page(Page),
    Answer(AdminRequest),
}

/// The parts that an answer needs.
struct Parts {
    handler: AdminHandler,
    token: Token,
    tls: Option<Arc<ServerTls>>,
    refusals: Mutex<Refusals>,
}

impl AdminPort {
    /// Binds the address, and answers from now on: inside TLS if the server has that.
    ///
    /// # Errors
    /// The address is not available, or the token in the state directory cannot be used.
    pub(crate) fn start(
        address: SocketAddr,
        state: &Path,
        tls: Option<Arc<ServerTls>>,
        handler: AdminHandler,
    ) -> Result<Self, StartError> {
        let failed = |error| StartError::AdminPort { address, error };
        let path = state.join(super::TOKEN_FILE);
        let token = Token::open(state).map_err(|error| StartError::State { path, error })?;
        let listener = TcpListener::bind(address).map_err(failed)?;
        let (address, is_secure) = (listener.local_addr().map_err(failed)?, tls.is_some());
        let parts = Parts { handler, token, tls, refusals: Mutex::default() };
        let serve = move |stream: &TcpStream, admitted: &Admitted, peer: Origin| {
            serve(stream, (admitted, peer), &parts)
        };
        let port = Port::start("dafs-admin-http", listener, ADMIN_HTTP_PEERS, serve)?;
        Ok(Self { address, is_secure, _port: port })
    }

    /// Returns the URL for `--server`.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }
}

/// Answers one request.
fn serve(
    stream: &TcpStream,
    (admitted, peer): (&Admitted, Origin),
    parts: &Parts,
) -> io::Result<()> {
    let mut socket = Timed::within(stream, ADMIN_HTTP_TIMEOUT);
    let mut line = match &parts.tls {
        None => Line::Clear,
        Some(tls) => Line::Secured(Box::new(Secured::accept(&mut socket, &tls.side())?.0)),
    };
    let answer = match receive(&mut line, &mut socket, admitted, parts)? {
        Ok(Wanted::Page(page)) => page.message(),
        Ok(Wanted::Answer(request)) => {
            let reply = answer_of(&parts.handler, request);
            let status = match &reply {
                AdminReply::Failed(_) => Status::UnprocessableContent,
                _ => Status::Ok,
            };
            message(status, &serde_json::to_vec(&reply).map_err(io::Error::other)?)
        }
        Err(refusal) => {
            let Refusal { status, text } = parts.counted(refusal, peer);
            let reply = AdminReply::Failed(text);
            message(status, &serde_json::to_vec(&reply).map_err(io::Error::other)?)
        }
    };
    finish(stream, &mut line, ADMIN_HTTP_TIMEOUT, &answer)
}

impl Parts {
    /// Counts a refusal for lack of the token. One of very many says to wait.
    fn counted(&self, refused: Refusal, peer: Origin) -> Refusal {
        if !matches!(refused.status, Status::Unauthorized | Status::Forbidden) {
            return refused;
        }
        let (is_flood, due) = self.refusals.lock().count(Instant::now());
        if let Some(count) = due {
            tracing::warn!(
                ?peer,
                count,
                "requests for administration were refused: {}",
                refused.text
            );
        }
        match is_flood {
            true => refusal(Status::TooManyRequests, "too many requests without the right token"),
            false => refused,
        }
    }
}

/// Reads a request. The outer error is one of the connection.
fn receive(
    line: &mut Line,
    socket: &mut Timed<'_>,
    admitted: &Admitted,
    parts: &Parts,
) -> io::Result<Result<Wanted, Refusal>> {
    let mut received = Vec::new();
    let bytes = loop {
        match head_bytes(&received) {
            Ok(Some(bytes)) => break bytes,
            Ok(None) if line.read(socket, &mut received)? > 0 => {}
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Ok(Err(error.into())),
        }
    };
    let mut content = received.split_off(bytes);
    let request = match Request::parse(&received) {
        Ok(request) => request,
        Err(error) => return Ok(Err(error.into())),
    };
    if let Some(page) = Page::of(&request) {
        let host = own_host(&request, parts.tls.is_some());
        return Ok(host.map(|_| Wanted::Page(page)));
    }
    let wanted = match accept(&request, parts) {
        Ok(wanted) => wanted,
        Err(refusal) => return Ok(Err(refusal)),
    };
    admitted.establish();
    while content.len() < wanted {
        if line.read(socket, &mut content)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    content.truncate(wanted);
    Ok(wanted_request(&request, &content).map(Wanted::Answer))
}

/// Decides if content is read. Returns its bytes.
fn accept(request: &Request<'_>, parts: &Parts) -> Result<usize, Refusal> {
    admit(request, parts.tls.is_some(), &parts.token)?;
    let bytes = request.fields.content_bytes()?;
    let too_large = || refusal(Status::ContentTooLarge, "the content is too large");
    if bytes > ADMIN_REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    usize::try_from(bytes).map_err(|_| too_large())
}

/// Returns the request that method, target and content make.
fn wanted_request(request: &Request<'_>, content: &[u8]) -> Result<AdminRequest, Refusal> {
    let name = request.target.strip_prefix("/v1/").unwrap_or_default();
    let is_read = READS.contains(&name);
    if !is_read && !ORDERS.contains(&name) {
        return Err(refusal(Status::NotFound, format!("there is no {}", request.target)));
    }
    if request.method != "POST" && !(is_read && request.method == "GET") {
        return Err(refusal(Status::MethodNotAllowed, "use POST"));
    }
    let fields = match content.trim_ascii() {
        [] => Value::Object(Map::new()),
        content => serde_json::from_slice(content).map_err(|error| {
            refusal(Status::BadRequest, format!("the content is no JSON: {error}"))
        })?,
    };
    // As serde writes requests: a name, or a name with fields.
    let request = match &fields {
        Value::Object(none) if none.is_empty() => Value::String(name.to_owned()),
        _ => Value::Object(Map::from_iter([(name.to_owned(), fields)])),
    };
    serde_json::from_value(request)
        .map_err(|error| refusal(Status::BadRequest, format!("this is not a request: {error}")))
}

/// Returns a whole message with JSON.
fn message(status: Status, content: &[u8]) -> Vec<u8> {
    let more = match status {
        Status::Unauthorized => "WWW-Authenticate: Bearer\r\n",
        Status::TooManyRequests => "Retry-After: 1\r\n",
        Status::MethodNotAllowed => "Allow: POST\r\n",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n{more}Connection: close\r\n\r\n",
        status.line(),
        content.len()
    );
    [head.as_bytes(), content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::UserOrder;
    use std::io::{Read as _, Write as _};

    fn of(method: &str, target: &str, content: &str) -> Result<AdminRequest, Status> {
        let head = format!("{method} {target} HTTP/1.1\r\n\r\n");
        let request = Request::parse(head.as_bytes()).unwrap();
        wanted_request(&request, content.as_bytes()).map_err(|refusal| refusal.status)
    }

    #[test]
    fn targets_name_the_requests_of_the_socket() {
        assert_eq!(of("GET", "/v1/clients", ""), Ok(AdminRequest::Clients));
        assert_eq!(of("POST", "/v1/reload", "{}"), Ok(AdminRequest::Reload));
        let expire = Ok(AdminRequest::Expire { client: 7 });
        assert_eq!(of("POST", "/v1/expire", "{\"client\": 7}\n"), expire);
        let user = of("POST", "/v1/set_user", "{\"name\": \"anna\", \"uid\": 7}").unwrap();
        assert!(matches!(user, AdminRequest::SetUser(UserOrder { uid: Some(7), gid: None, .. })));
        for (method, target, content, status) in [
            ("GET", "/v1/reload", "", Status::MethodNotAllowed),
            ("PUT", "/v1/clients", "", Status::MethodNotAllowed),
            ("GET", "/clients", "", Status::NotFound),
            ("GET", "/v2/clients", "", Status::NotFound),
            ("GET", "/v1/clients?x", "", Status::NotFound),
            ("POST", "/v1/expire", "{}", Status::BadRequest),
            ("POST", "/v1/expire", "{\"client\":", Status::BadRequest),
            ("POST", "/v1/expire", "7", Status::BadRequest),
        ] {
            assert_eq!(of(method, target, content), Err(status), "{method} {target} {content}");
        }
    }

    #[test]
    fn the_page_is_all_that_needs_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let handler: AdminHandler = Box::new(|request| AdminReply::Done(format!("{request:?}")));
        let port = AdminPort::start("127.0.0.1:0".parse().unwrap(), dir.path(), None, handler);
        let port = port.unwrap();
        let token = std::fs::read_to_string(dir.path().join("admin-token")).unwrap();
        let token = token.trim();
        let ask = |line: &str, fields: &str| {
            let mut stream = TcpStream::connect(port.address).unwrap();
            write!(stream, "{line} HTTP/1.1\r\n{fields}\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(!answer.contains(token), "{line}");
            answer
        };
        let page = ask("GET /", "Host: localhost\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.ends_with("</html>\n"), "{page}");
        // A link of another site may lead here: it tells that site nothing.
        let link = "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n";
        assert_eq!(ask("GET /", link), page);
        for (line, fields, status) in [
            ("GET /favicon.svg", "Host: localhost\r\n", "200"),
            ("GET /favicon.ico", "Host: localhost\r\n", "200"),
            ("GET /", "", "400"),
            ("GET /", "Host: attacker.example\r\n", "403"),
            ("GET /favicon.ico", "Host: attacker.example\r\n", "403"),
            ("GET /?", "Host: localhost\r\n", "401"),
            ("POST /", "Host: localhost\r\n", "401"),
            ("GET /v1/status", "Host: localhost\r\n", "401"),
        ] {
            let answer = ask(line, fields);
            assert_eq!(answer.split(' ').nth(1), Some(status), "{line} {fields}");
        }
        let fields = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
        assert!(ask("GET /v1/status", &fields).ends_with("{\"done\":\"Status\"}"));
        assert!(ask("GET /?", &fields).starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn every_request_has_a_target() {
        let named = |name: &str| {
            let error =
                serde_json::from_value::<AdminRequest>(Value::String(name.to_owned())).err();
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        for name in READS {
            assert_eq!(named(name), "");
        }
        for name in ORDERS {
            assert!(!named(name).contains("unknown variant"), "{name}");
        }
        // The message has the wrong name and all that there are.
        let all = named("other");
        assert_eq!(all.matches('`').count(), 2 * (1 + READS.len() + ORDERS.len()), "{all}");
    }
}
