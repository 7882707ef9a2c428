//! Helpers that the tests share.

use std::time::Duration;

use margo::Instance;
use margo_stream::{ReceiveSpec, Receiver, Route, SendSpec, Sender, Stream};

/// Longer than anything takes that does not hang.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// An instance that listens.
pub(crate) fn instance(address: &str) -> Instance {
    Instance::builder(address).grace(Duration::from_secs(1)).start().unwrap()
}

pub(crate) fn client(address: &str) -> Instance {
    Instance::builder(address).listen(false).start().unwrap()
}

pub(crate) fn end(instances: impl IntoIterator<Item = Instance>) {
    for instance in instances {
        instance.finalize_and_wait().unwrap();
    }
}

/// Numbers, over one transport.
pub(crate) const NUMBERS: Stream<u64> = Stream::new("numbers");

pub(crate) fn receiver(at: &Instance, spec: &ReceiveSpec) -> Receiver<u64> {
    Receiver::serve(&[at], NUMBERS, spec).unwrap()
}

pub(crate) fn sender(from: &Instance, to: &Receiver<u64>, spec: &SendSpec) -> Sender<u64> {
    Sender::connect(&[from], NUMBERS, to.addresses(), spec, Route::RoundRobin).unwrap()
}
