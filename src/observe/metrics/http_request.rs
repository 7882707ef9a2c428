//! As much of HTTP/1.1 as a scrape needs: the head of a request, and whole responses.
//!
//! One request for each connection, without a body. Every response says that the connection closes.

use std::borrow::Cow;

use super::text::CONTENT_TYPE;

/// Longest head of a request, bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;

/// The response that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// Something of the instance; `false`: only the head of that response.
    Content(Content, bool),
    /// Something else, which gets this response.
    Other(Status),
}

/// The contents that there are, each at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// The metrics for Prometheus.
    Metrics,
    /// The metrics as JSON.
    Json,
    /// The phase of the instance.
    Health,
    /// The live page, which reads the JSON.
    Page,
}

impl Content {
    fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/metrics" => Self::Metrics,
            "/metrics.json" => Self::Json,
            "/healthz" => Self::Health,
            "/" => Self::Page,
            _ => return None,
        })
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Metrics => CONTENT_TYPE,
            Self::Json => "application/json",
            Self::Health => "text/plain; charset=utf-8",
            Self::Page => "text/html; charset=utf-8",
        }
    }

    /// Further headers. The page may run its own script and read from here, and nothing else.
    fn headers(self) -> &'static str {
        match self {
            Self::Page => {
                "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
                 Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
                 style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; \
                 form-action 'none'; frame-ancestors 'none'\r\n"
            }
            _ => "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
        }
    }
}

/// The body of a response with some content.
#[derive(Debug)]
pub(crate) struct Body {
    /// The instance takes requests: the status is 200, and not 503.
    pub(crate) is_well: bool,
    pub(crate) text: Cow<'static, str>,
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self { is_well: true, text: text.into() }
    }
}

/// How else a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    InternalServerError,
}

/// Returns the response that the head of a request asks for; `None`: there is more to come.
pub(super) fn parse(head: &[u8]) -> Option<ResponseKind> {
    let end = head.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        let is_hopeless = head.first().is_some_and(|byte| !byte.is_ascii_uppercase());
        return match () {
            // Another protocol, which may wait for us to say something.
            () if is_hopeless => Some(ResponseKind::Other(Status::BadRequest)),
            () if head.len() >= HEAD_BYTES_MAX => Some(ResponseKind::Other(Status::TooLarge)),
            () => None,
        };
    };
    Some(asked(&head[..end]).unwrap_or(ResponseKind::Other(Status::BadRequest)))
}

/// `None`: it is malformed.
fn asked(head: &[u8]) -> Option<ResponseKind> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_header = |line: &str| {
        let name = line.split_once(':').map(|(name, _)| name);
        name.is_some_and(|name| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
        })
    };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_version = matches!(version, "HTTP/1.0" | "HTTP/1.1");
    if words.next().is_some() || !is_method || !is_version || !lines.all(is_header) {
        return None;
    }
    // A proxy's form, `http://host/metrics`, has the path behind the host.
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let path = path.split(['?', '#']).next()?;
    Some(match (Content::at(path), method) {
        (Some(content), "GET") => ResponseKind::Content(content, true),
        (Some(content), "HEAD") => ResponseKind::Content(content, false),
        (Some(_), _) => ResponseKind::Other(Status::MethodNotAllowed),
        (None, _) => ResponseKind::Other(Status::NotFound),
    })
}

/// The response with some content.
pub(super) fn content(content: Content, body: &Body, with_body: bool) -> Vec<u8> {
    let line = if body.is_well { "200 OK" } else { "503 Service Unavailable" };
    let mut response = head(line, content.content_type(), body.text.len(), content.headers());
    if with_body {
        response.push_str(&body.text);
    }
    response.into_bytes()
}

impl Status {
    pub(super) fn response(self) -> Vec<u8> {
        let (line, more, body) = match self {
            Self::BadRequest => ("400 Bad Request", "", "This is no request of HTTP/1.1.\n"),
            Self::NotFound => {
                ("404 Not Found", "", "There are /, /metrics, /metrics.json and /healthz here.\n")
            }
            Self::MethodNotAllowed => {
                ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "There is only GET here.\n")
            }
            Self::TooLarge => (
                "431 Request Header Fields Too Large",
                "",
                "The head of the request is too long.\n",
            ),
            Self::InternalServerError => (
                "500 Internal Server Error",
                "",
                "What was asked for its metrics has panicked; the log of the service says why.\n",
            ),
        };
        let mut response = head(line, "text/plain; charset=utf-8", body.len(), more);
        response.push_str(body);
        response.into_bytes()
    }
}

fn head(line: &str, content_type: &str, len: usize, more: &str) -> String {
    format!(
        "HTTP/1.1 {line}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n{more}\
         Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_scrape_is_understood_however_it_is_put() {
        for (text, expected) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                ResponseKind::Content(Content::Metrics, true),
            ),
            ("GET /metrics HTTP/1.0\r\n\r\n", ResponseKind::Content(Content::Metrics, true)),
            (
                "GET /metrics?name[]=x HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
                ResponseKind::Content(Content::Metrics, true),
            ),
            (
                "GET http://host:9100/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                ResponseKind::Content(Content::Metrics, true),
            ),
            (
                "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                ResponseKind::Content(Content::Metrics, false),
            ),
            ("GET /healthz HTTP/1.1\r\n\r\n", ResponseKind::Content(Content::Health, true)),
            ("GET /metrics.json HTTP/1.1\r\n\r\n", ResponseKind::Content(Content::Json, true)),
            ("PUT /healthz HTTP/1.1\r\n\r\n", ResponseKind::Other(Status::MethodNotAllowed)),
            ("POST /metrics HTTP/1.1\r\n\r\nbody", ResponseKind::Other(Status::MethodNotAllowed)),
            ("GET / HTTP/1.1\r\n\r\n", ResponseKind::Content(Content::Page, true)),
            ("GET /page HTTP/1.1\r\n\r\n", ResponseKind::Other(Status::NotFound)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", ResponseKind::Other(Status::NotFound)),
            ("GET http://host HTTP/1.1\r\n\r\n", ResponseKind::Content(Content::Page, true)),
            ("GET /metrics\r\n\r\n", ResponseKind::Other(Status::BadRequest)),
            ("GET /metrics HTTP/2.0\r\n\r\n", ResponseKind::Other(Status::BadRequest)),
            ("GET /metrics HTTP/1.1 x\r\n\r\n", ResponseKind::Other(Status::BadRequest)),
            ("GET /metrics HTTP/1.1\r\nno header\r\n\r\n", ResponseKind::Other(Status::BadRequest)),
            ("\x16\x03\x01\x02", ResponseKind::Other(Status::BadRequest)),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text:?}");
        }
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        assert_eq!(parse(&long), None);
        long.resize(HEAD_BYTES_MAX, b'x');
        assert_eq!(parse(&long), Some(ResponseKind::Other(Status::TooLarge)));
    }

    fn metrics(with_body: bool) -> Vec<u8> {
        content(Content::Metrics, &"a 1\n".to_owned().into(), with_body)
    }

    #[test]
    fn a_response_says_how_long_it_is() {
        let statuses = [
            Status::BadRequest,
            Status::NotFound,
            Status::MethodNotAllowed,
            Status::TooLarge,
            Status::InternalServerError,
        ];
        let responses = statuses.map(Status::response).into_iter().chain([metrics(true)]);
        for response in responses {
            let text = String::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{text}");
            assert!(!body.is_empty() && head.starts_with("HTTP/1.1 "));
        }
        let head = String::from_utf8(metrics(false)).unwrap();
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"));
    }

    proptest! {
        #[test]
        fn garbage_gets_an_answer_or_is_waited_for(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let first = parse(&bytes);
            // More of it does not take an answer back.
            let mut more = bytes.clone();
            more.extend_from_slice(b"\r\n\r\n");
            prop_assert!(parse(&more).is_some());
            let is_short = bytes.first().is_none_or(u8::is_ascii_uppercase);
            prop_assert!(first.is_some() || is_short);
        }
    }
}
