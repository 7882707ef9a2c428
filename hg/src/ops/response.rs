//! Responses at the origin.

use std::fmt;

use crate::memory::{Buffers, Payload};

/// A response: what stands behind Mercury's headers. Gives its buffer back when dropped.
///
/// ```
/// # use hg::*;
/// # #[derive(Default)]
/// # struct Notes { requests: Vec<RequestHandle<u32>>, ended: Vec<Result<Response, HgError>> }
/// # impl Sink<u32> for Notes {
/// #     fn request(&mut self, request: RequestHandle<u32>) { self.requests.push(request); }
/// #     fn response(&mut self, _: u32, end: Result<Response, HgError>) { self.ended.push(end); }
/// #     fn responded(&mut self, _: u32, _: Result<(), HgError>) {}
/// #     fn bulk(&mut self, _: u32, _: Result<u64, HgError>) {}
/// # }
/// # let mut notes = Notes::default();
/// # let endpoint = na::open("na+sim://doc-response/a", &na::OpenOptions::listening(true))?;
/// # let core = Core::<u32>::new(endpoint, HgOptions::default())?;
/// # let own = core.self_addr();
/// # let id = core.register(Registration::margo("sum", ProviderId::DEFAULT))?;
/// # core.forward(&own, id, ForwardOptions::default(), |out| out.put(b"1 2"), 7)
/// #     .map_err(|refused| refused.0)?;
/// # core.poll(16, &mut notes)?;
/// # let request = notes.requests.pop().ok_or("no request")?;
/// let _sent = request.respond(|out| out.put(b"3"), 8).map_err(|refused| refused.0)?;
/// while notes.ended.is_empty() {
///     core.poll(16, &mut notes)?;
/// }
/// let response: Response = notes.ended.remove(0)?;
/// assert_eq!(response.payload(), b"3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Response {
    payload: Payload,
    /// Names the pool of its buffer.
    pool: u64,
}

impl Response {
    #[inline]
    pub(crate) fn new(payload: Payload, buffers: &Buffers) -> Self {
        Self { payload, pool: buffers.number() }
    }

    /// Returns the response of a one-way call, which is empty.
    #[inline]
    pub(crate) fn empty() -> Self {
        Self { payload: Payload::None, pool: 0 }
    }

    /// The bytes; all of them, also if they had overflowed. Its length is what C calls the output
    /// payload size.
    ///
    /// Counterpart: `HG_Get_output_buf`, `HG_Get_output_extra_buf`, `HG_Get_output_payload_size`.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.payload.as_slice()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.payload.recycle(self.pool);
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} bytes)", self.payload().len())
    }
}
