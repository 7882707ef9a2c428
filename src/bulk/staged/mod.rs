//! Transfers from and to memory of devices, through pinned memory of the host.
//!
//! Transports move memory of the host. So who owns memory of a device copies it to buffers that the
//! device copies at full speed, and these are what is moved, a chunk at a time: while one chunk is
//! on the wire, the next ones are copied.
//!
//! | here | there | what happens |
//! |---|---|---|
//! | device | host, of any peer | each chunk is an ordinary transfer of a buffer of ours (`carriers.rs`) |
//! | host | device | the owner is asked to do just that (`owner.rs`): its side is the first row, with memory that is lent to it for as long |
//! | device | device | the first row, whose transfers of buffers are the second |
//!
//! A transfer is a ULT of the pool of progress, which never waits in a call of the driver, and ends
//! the [`BulkCall`](crate::operation::bulk_call::BulkCall) that the caller has, as the network does
//! for others: waiting, deadlines, cancel and requests are the same (`start.rs`).
//!
//! *What a peer can make grow.* A request to move device memory holds buffers of its owner, two at
//! most; of all requests only so many are in hand that half of the buffers are for one host or
//! user. A peer that does not go on with its side ends its request when that has stood still for
//! `margo.bulk.timeout_msec`.

use crate::{InitError, Instance};

pub(crate) mod carriers;
pub(crate) mod owner;
pub(crate) mod start;

/// Makes the devices of `margo.device.devices` ready, or all, if `mercury.na_request_mem_device`
/// asks for it. `driver`: another one than that of the machine.
pub(crate) fn make_ready(
    instance: &Instance,
    driver: Option<device::Driver>,
) -> Result<(), InitError> {
    let resolved = &instance.inner().resolved;
    if !resolved.mercury.na_request_mem_device {
        return Ok(());
    }
    let names = resolved.device.devices.clone();
    // Opening the driver takes its time.
    let opened = ult::blocking(move || {
        let driver = driver.map_or_else(device::Driver::cuda, Ok)?;
        let of_all = driver.devices()?.into_iter().map(|device| device.index.to_string());
        let names = if names.is_empty() { of_all.collect() } else { names };
        names.iter().map(|name| driver.device_named(name)).collect::<Result<Vec<_>, _>>()
    });
    let devices = opened.map_err(|error| InitError::Device(error.to_string()))?;
    for device in devices {
        instance.staging(&device).map_err(|error| InitError::Device(error.to_string()))?;
    }
    Ok(())
}
