//! The conformance suite over UCX, by TCP and by shared memory, where `MARGO_TEST_UCX=1` is set;
//! else each test says SKIPPED.
#![cfg(feature = "ucx")]

use na::conformance::Optional;

mod tcp {
    use super::*;

    const OPEN: Optional = Optional { variable: "MARGO_TEST_UCX", uri: "ucx+tcp://127.0.0.1:0" };

    na::conformance! { OPEN; all }
}

mod sm {
    use super::*;

    const OPEN: Optional = Optional { variable: "MARGO_TEST_UCX", uri: "ucx+sm://127.0.0.1:0" };

    na::conformance! { OPEN; all }
}
