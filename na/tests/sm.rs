//! The conformance suite over shared memory, once per way of moving bulk data.
#![cfg(feature = "sm")]

use std::sync::Arc;

use na::{Endpoint, OpenOptions};

mod attach {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        na::open("na+sm://", options).expect("open")
    }

    na::conformance! { open; all }

    #[test]
    fn the_path_is_named() {
        assert!(
            open(&OpenOptions::default())
                .bulk_path()
                .ends_with("the shared ring or cross-memory attach")
        );
    }
}

mod ring {
    use super::*;

    fn open(options: &OpenOptions) -> Arc<dyn Endpoint> {
        let mut options = options.clone();
        options.sm.cross_memory_attach = false;
        na::open("na+sm://", &options).expect("open")
    }

    na::conformance! { open; all }

    #[test]
    fn the_path_is_named() {
        assert!(
            open(&OpenOptions::default()).bulk_path().ends_with("copy through the shared ring")
        );
    }
}

/// One side permits attaching and the other does not: bulk data takes the ring both ways.
mod mixed {
    use super::*;

    fn open(listen: bool) -> Arc<dyn Endpoint> {
        let mut options = OpenOptions::listening(listen);
        options.sm.cross_memory_attach = listen;
        na::open("na+sm://", &options).expect("open")
    }

    na::conformance! { open;
        get_and_put_between_segments,
        large_transfers_are_complete,
        many_transfers_at_once,
        transfers_from_and_to_an_origin,
        canceled_transfers_end_once,
    }
}
