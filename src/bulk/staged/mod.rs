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
//! | device | device, of this instance | the device copies, also to another device (`within.rs`) |
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
pub(crate) mod within;

/// Opens the devices of these names, or all if there are none; it takes its time. `drivers`: others
/// than those of the machine. A name is looked for with each driver, NVIDIA's first.
pub(crate) fn open_devices(
    names: &[String],
    drivers: Option<Vec<Driver>>,
) -> Result<Vec<Device>, String> {
    let found = drivers.map(|drivers| drivers.into_iter().map(Ok).collect());
    let found: Vec<Result<Driver, DeviceError>> = found.unwrap_or_else(Driver::all);
    let (mut drivers, mut refused) = (Vec::new(), Vec::new());
    for driver in found {
        match driver {
            Ok(driver) => drivers.push(driver),
            Err(error) => refused.push(error.to_string()),
        }
    }
    if drivers.is_empty() {
        return Err(refused.join("; "));
    }
    let text = |error: DeviceError| error.to_string();
    let mut devices = Vec::new();
    if names.is_empty() {
        for driver in &drivers {
            for info in driver.devices().map_err(text)? {
                devices.push(driver.device(info.index).map_err(text)?);
            }
        }
        return Ok(devices);
    }
    for name in names {
        let mut tried = drivers.iter().map(|driver| driver.device_named(name));
        let mut refused = Vec::new();
        let opened = tried.find_map(|tried| tried.map_err(|error| refused.push(text(error))).ok());
        devices.push(opened.ok_or_else(|| refused.join("; "))?);
    }
    Ok(devices)
}

/// Makes the devices of `margo.device.devices` ready, if `mercury.na_request_mem_device` asks for
/// it.
pub(crate) fn make_ready(instance: &Instance, driver: Option<Driver>) -> Result<(), InitError> {
    let resolved = &instance.inner().resolved;
    if !resolved.mercury.na_request_mem_device {
        return Ok(());
    }
    let names = resolved.device.devices.clone();
    let opened = ult::blocking(move || open_devices(&names, driver.map(|driver| vec![driver])));
    for device in opened.map_err(InitError::Device)? {
        instance.staging(&device).map_err(|error| InitError::Device(error.to_string()))?;
    }
    Ok(())
}
