//! An owner of memory that answers only when it is turned.

use margo::hg::HgOptions;
use margo::{Access, Addr, Bulk, Instance};
use na::LocalMem;

use super::{Node, pattern};

/// Such an owner of `len` bytes, which peers may read and write, and an instance that knows it
/// already.
pub(crate) fn idle_owner(uri: &str, len: usize) -> (Node, LocalMem, Bulk, Instance, Addr) {
    let mut owner = Node::open(uri, true, HgOptions::default());
    let lent = owner.expose(vec![pattern(len, 0)], Access::ReadWrite);
    let bulk = owner.core.bulk_handle(&lent);
    let mover = Instance::builder(uri).start().unwrap();
    let addr = mover.lookup(owner.core.self_addr().uri()).unwrap();
    let (first, to, handle) = (mover.clone(), addr.clone(), bulk.clone());
    let connect = mover.layout().rpc_pool().spawn(move || {
        let mut buffer = first.memory().bulk_buffer(1).unwrap();
        first.pull(&to, &handle, 0, &mut buffer, 0..1).unwrap();
    });
    let connect = connect.unwrap();
    while !connect.is_finished() {
        owner.turn();
    }
    (owner, lent, bulk, mover, addr)
}
