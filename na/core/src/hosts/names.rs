//! Host names: the system's resolver, which may take seconds.
//!
//! The caller may be a ULT of an xstream, which `na` does not know. A program with xstreams sets
//! how work that waits for the system is run ([`run_blocking_by`]). If several callers ask for one
//! name at the same time, those that wait for their turn take over the result that was found
//! meanwhile.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Instant;

/// How work is run that may wait for the system. Returns when it has run, and may drop it if its
/// caller is not to wait for it any more, which it then tells by unwinding.
///
/// ```
/// # use na_core as na;
/// use na::RunBlocking;
///
/// // For `na::run_blocking_by`, at the start of the program.
/// const ON_A_THREAD: RunBlocking = |work| drop(std::thread::spawn(work).join());
///
/// let (tell, told) = std::sync::mpsc::channel();
/// ON_A_THREAD(Box::new(move || tell.send("done").unwrap_or_default()));
/// assert_eq!(told.try_recv()?, "done");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type RunBlocking = fn(Box<dyn FnOnce() + Send>);

static RUN: OnceLock<RunBlocking> = OnceLock::new();

/// Sets `run` as the function that runs calls which wait for the system, such as the resolver's, in
/// place of the caller. The first one set stays.
pub fn run_blocking_by(run: RunBlocking) {
    let _ = RUN.set(run);
}

/// The result for a host, and when it was asked for.
type Found = (Instant, Result<Vec<SocketAddr>, String>);

/// Results for hosts that were asked for lately.
static FOUND: Mutex<Option<HashMap<String, Found>>> = Mutex::new(None);

/// Hosts of which a result is kept, at most.
const KEPT_MAX: usize = 64;

/// The addresses of a host, as the system's resolver has them.
///
/// # Errors
///
/// The resolver's text.
pub fn addresses_of(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let mut addresses = by_helper(host)?;
    addresses.iter_mut().for_each(|address| address.set_port(port));
    Ok(addresses)
}

fn by_helper(host: &str) -> Result<Vec<SocketAddr>, String> {
    let Some(run) = RUN.get() else { return ask(host) };
    let (asked, host) = (Instant::now(), host.to_owned());
    let (tell, told) = mpsc::channel();
    run(Box::new(move || {
        // Nobody is there to hear it if the caller was cancelled.
        let _ = tell.send(found_since(asked, &host));
    }));
    told.recv().unwrap_or_else(|_| Err("the look-up was given up".to_owned()))
}

/// Returns the result of another caller who began after `asked`, or else asks the resolver.
fn found_since(asked: Instant, host: &str) -> Result<Vec<SocketAddr>, String> {
    let kept = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((begun, result)) = kept().get_or_insert_default().get(host)
        && *begun >= asked
    {
        return result.clone();
    }
    let begun = Instant::now();
    let result = ask(host);
    let mut kept = kept();
    let kept = kept.get_or_insert_default();
    if kept.len() >= KEPT_MAX {
        kept.clear();
    }
    kept.insert(host.to_owned(), (begun, result.clone()));
    result
}

fn ask(host: &str) -> Result<Vec<SocketAddr>, String> {
    let found: io::Result<Vec<_>> = (host, 0).to_socket_addrs().map(Iterator::collect);
    found.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_out_after_it_was_asked_for_is_taken_over() {
        let asked = Instant::now();
        let made_up = vec![SocketAddr::from(([192, 0, 2, 1], 0))];
        let host = "made-up-by-a-test.invalid";
        let mut found = FOUND.lock().unwrap();
        found.get_or_insert_default().insert(host.into(), (Instant::now(), Ok(made_up.clone())));
        drop(found);
        assert_eq!(found_since(asked, host), Ok(made_up));
        assert!(found_since(Instant::now(), "").is_err(), "the resolver is asked for what is new");
    }
}
