//! Large data does not travel in the request: the origin exposes memory, and the handler pulls from
//! it or pushes into it, straight between the memory of the two processes.
//!
//! ```text
//! cargo run --example bulk
//! ```
//!
//! Prints `reversed 1048576 bytes`.

use margo::{Access, Bulk, Instance, ProviderHandle, Rpc};

/// Pulls the bytes, reverses them, pushes them back; answers how many there were.
const REVERSE: Rpc<Bulk, Result<u64, String>> = Rpc::new("reverse");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = Instance::builder("na+sm://").start()?;
    service.register(REVERSE, |request| {
        let result = reverse(&request).map_err(|error| error.to_string());
        if let Err(error) = request.respond(&result) {
            eprintln!("{error}");
        }
    })?;

    let client = Instance::builder("na+sm://").listen(false).start()?;
    let target = ProviderHandle::from(client.lookup(service.self_addr().uri())?);

    let data: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    // Peers may use the memory until `release` gives it back.
    let exposed = client.expose(data.clone(), Access::ReadWrite)?;
    let bytes = client.forward(REVERSE, &target, exposed.bulk())??;
    let reversed = exposed.release()?;

    assert!(reversed.iter().eq(data.iter().rev()), "the bytes came back wrong");
    println!("reversed {bytes} bytes");

    client.finalize_and_wait()?;
    service.finalize_and_wait()?;
    Ok(())
}

fn reverse(
    request: &margo::Handle<Bulk, Result<u64, String>>,
) -> Result<u64, Box<dyn std::error::Error>> {
    let remote = request.args();
    let len = usize::try_from(remote.len())?;
    let mut buffer = request.instance().memory().bulk_buffer(len)?;
    request.pull(remote, 0, &mut buffer, 0..len)?;
    buffer.reverse();
    request.push(remote, 0, &mut buffer, 0..len)?;
    Ok(remote.len())
}
