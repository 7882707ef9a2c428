//! The endpoint that fuzzers of connections drive, whatever its transport. See `fuzz/`.

use crate::{Access, Completion, Endpoint, LocalMem, Memory, OpId, OpenOptions, Plugin, Uri};
use prim::sync::Arc;

/// A listening endpoint with receives posted, and memory that peers may use.
///
/// ```
/// use na_core::endpoint::fuzz_target::Target;
///
/// let target = Target::new(&na_sim::Sim, "na+sim://fuzz-target/a");
/// // Whatever a peer has done:
/// target.poll();
/// assert_eq!(target.memory.len(), 64 << 10);
/// ```
#[derive(Debug)]
pub struct Target {
    /// The endpoint.
    pub endpoint: Arc<dyn Endpoint>,
    /// The memory that peers may use.
    pub memory: LocalMem,
}

impl Target {
    /// Opens the endpoint.
    ///
    /// # Panics
    ///
    /// If it cannot be opened.
    pub fn new(plugin: &dyn Plugin, uri: &str) -> Self {
        let uri = Uri::parse(uri).expect("parse");
        let endpoint = plugin.open(&uri, &OpenOptions::listening(true)).expect("open");
        let memory = Memory::from_vec(vec![7; 64 << 10]);
        let memory = endpoint.register(memory, Access::ReadWrite).expect("register");
        let this = Self { endpoint, memory };
        (0..16).for_each(|op| this.post(OpId(op)));
        this
    }

    fn post(&self, op: OpId) {
        self.endpoint.recv_unexpected(op, self.endpoint.alloc_msg()).expect("post");
    }

    /// # Panics
    ///
    /// If what a peer did ends the endpoint or a receive of any source.
    pub fn poll(&self) {
        let longest = self.endpoint.limits().unexpected_bytes_max;
        let mut sink = |completion| {
            if let Completion::Recv { op, buf, result } = completion {
                result.expect("a receive of any source outlives its peers");
                assert!(buf.len() <= longest);
                self.post(op);
            }
        };
        // `prepare_wait` looks at the sockets, which a busy poll does only now and then.
        self.endpoint.prepare_wait();
        self.endpoint.poll(64, &mut sink).expect("an endpoint outlives its peers");
    }
}
