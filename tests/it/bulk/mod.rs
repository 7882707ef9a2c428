//! Bulk memory and transfers: through the public API (`transfers`, `requests`, `segments`), the
//! cases of Mercury's own tests (`cases`, `processes`), peers that die (`kill`), buffers and their
//! pools, memory on terms (`terms`), memory of devices (`staged`; `shared`: of one host).

mod alloc;
mod cancel;
mod cases;
mod copy_pool;
mod fabric;
mod kill;
mod large;
mod pool;
mod processes;
mod requests;
mod segments;
mod shared;
mod shared_processes;
mod staged;
mod staged_processes;
mod terms;
mod transfers;
