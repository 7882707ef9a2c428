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
//! | device | device, of a process of this host | if both allow it, the owner maps our memory, and copies by its device (`lend.rs`, `mapped.rs`) |
//! | device | device, of others | the first row, whose transfers of buffers are the second |
//!
//! A transfer is a ULT of the pool of progress, which never waits in a call of the driver, and ends
//! the [`BulkCall`](crate::operation::bulk_call::BulkCall) that the caller has, as the network does
//! for others: waiting, deadlines, cancel and requests are the same (`start.rs`). Copies that a
//! device does not end are left to a thread (`late.rs`).
//!
//! *What a peer can make grow.* A request to move device memory holds buffers of its owner, two at
//! most; of all requests only so many are in hand that half of the buffers are for one host or
//! user. A peer that does not go on with its side ends its request when that has stood still for
//! `margo.bulk.timeout_msec`. Of memory that peers lend, so many pieces and bytes are mapped
//! (`memory/lending.rs`).

use device::{Device, DeviceError, Driver};

use crate::{InitError, Instance};

pub(crate) mod carriers;
pub(crate) mod late;
pub(crate) mod lend;
pub(crate) mod mapped;
pub(crate) mod owner;
pub(crate) mod start;

/// Opens the devices of these names, or all if there are none; it takes its time. `driver`: another
/// one than that of the machine.
pub(crate) fn open_devices(
    names: &[String],
    driver: Option<Driver>,
) -> Result<Vec<Device>, DeviceError> {
    let driver = driver.map_or_else(Driver::cuda, Ok)?;
    if names.is_empty() {
        return driver.devices()?.iter().map(|device| driver.device(device.index)).collect();
    }
    names.iter().map(|name| driver.device_named(name)).collect()
}

/// Makes the devices of `margo.device.devices` ready, if `mercury.na_request_mem_device` asks for
/// it.
pub(crate) fn make_ready(instance: &Instance, driver: Option<Driver>) -> Result<(), InitError> {
    let resolved = &instance.inner().resolved;
    if !resolved.mercury.na_request_mem_device {
        return Ok(());
    }
    let names = resolved.device.devices.clone();
    let opened = ult::blocking(move || open_devices(&names, driver));
    for device in opened.map_err(|error| InitError::Device(error.to_string()))? {
        instance.staging(&device).map_err(|error| InitError::Device(error.to_string()))?;
    }
    Ok(())
}
