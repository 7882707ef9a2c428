//! The devices that a document asks for, in words.

use device::Driver;
use margo_config::Resolved;

use crate::bulk::staged::open_devices;
use crate::layout::options::na_options;

/// Returns a line for each device that `mercury.na_request_mem_device` makes ready on this machine,
/// and what moves their memory, or why an instance with this document does not start.
pub(super) fn explain(
    resolved: &Resolved,
    drivers: Option<Vec<Driver>>,
) -> Result<Vec<String>, String> {
    if !resolved.mercury.na_request_mem_device {
        return Ok(Vec::new());
    }
    let options = &resolved.device;
    let opened = open_devices(&options.devices, drivers);
    let devices = opened.map_err(|error| format!("mercury.na_request_mem_device: {error}"))?;
    let (buffers, streams) = (options.buffers, options.streams);
    let kib = options.chunk_bytes >> 10;
    let line = |device: &device::Device| {
        let info = device.info();
        format!("{info}: ready at the start, {buffers} buffers of {kib} KiB, {streams} streams.")
    };
    let shared = options.share.then(|| {
        let gib = options.mapped_bytes_max >> 30;
        format!(
            "Device memory is lent to processes of this user over na+sm, and up to {gib} GiB of \
             theirs are mapped."
        )
    });
    Ok(devices.iter().map(line).chain([way(resolved, &devices)]).chain(shared).collect())
}

/// Tells what moves memory of the devices over the network.
fn way(resolved: &Resolved, devices: &[device::Device]) -> String {
    let address = &resolved.address;
    let by_buffers = match na::moves_device_memory(address, &na_options(resolved)) {
        Ok(true) if devices.iter().all(|device| device.info().orders_writes) => {
            return format!("Over {address} the fabric moves device memory by itself (FI_HMEM).");
        }
        Ok(true) => "; the fabric moves that of devices whose kernels see its writes (FI_HMEM)",
        Ok(false) => "",
        // What is wrong is told elsewhere.
        Err(_) => "; what a fabric can do by itself is not known here",
    };
    format!("Over {address} device memory goes through buffers of the host{by_buffers}.")
}

#[cfg(test)]
mod tests {
    use margo_config::Config;

    use super::*;

    #[test]
    fn devices_are_listed_and_what_is_missing_is_said() {
        let resolved = |document| Config::from_json(document).unwrap().resolve(&|_| None).unwrap();
        let fake = device::fake::Fake::new(2, 1);
        let told = |document| explain(&resolved(document), Some(vec![fake.driver().unwrap()]));
        assert_eq!(told("{}"), Ok(Vec::new()));
        let all = told(r#"{ "mercury": { "na_request_mem_device": true } }"#).unwrap();
        assert!(all.len() == 3 && all[2].contains("through buffers of the host."), "{all:?}");
        for part in ["device 1: Fake at 00000000:f1:00.0", "16 buffers of 2048 KiB, 4 streams"] {
            assert!(all[1].contains(part), "no {part} in {}", all[1]);
        }
        let shared = r#"{ "mercury": { "na_request_mem_device": true },
                          "margo": { "device": { "share": true, "devices": ["0"] } } }"#;
        let lines = told(shared).unwrap();
        assert!(lines.len() == 3 && lines[2].contains("up to 64 GiB"), "{lines:?}");
        let one = r#"{ "mercury": { "na_request_mem_device": true },
                       "margo": { "device": { "devices": ["5"] } } }"#;
        let error = told(one).unwrap_err();
        for part in ["na_request_mem_device", "no device 5"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
        assert_eq!(fake.in_use(), device::fake::InUse::default());
    }

    #[test]
    fn devices_of_several_drivers_are_made_ready() {
        use device::DriverKind;
        use device::fake::Fake;

        let (nvidia, amd) = (Fake::new(1, 1), Fake::new(2, 2));
        let told = |devices: &str| {
            let document = format!(
                r#"{{ "mercury": {{ "na_request_mem_device": true }},
                     "margo": {{ "device": {{ "devices": [{devices}] }} }} }}"#
            );
            let resolved = Config::from_json(&document).unwrap().resolve(&|_| None).unwrap();
            let drivers = vec![nvidia.driver().unwrap(), amd.driver_of(DriverKind::Hip).unwrap()];
            explain(&resolved, Some(drivers))
        };
        assert_eq!(told("").unwrap().len(), 1 + 2 + 1);
        // The first is NVIDIA's, which has no second one.
        let before = (nvidia.in_use(), amd.in_use());
        assert_eq!(told(r#""0", "1""#).unwrap().len(), 2 + 1);
        assert_eq!((nvidia.in_use(), amd.in_use()), before);
        let error = told(r#""2""#).unwrap_err();
        assert_eq!(error.matches("no device 2").count(), 2, "{error}");
    }

    #[test]
    fn it_is_told_what_moves_the_memory() {
        use na::ofi::fake_fabric::Fabric;

        let document = format!(
            r#"{{ "mercury": {{ "na_request_mem_device": true }},
                 "margo": {{ "address": "{}" }} }}"#,
            Fabric::URI
        );
        let resolved = Config::from_json(&document).unwrap().resolve(&|_| None).unwrap();
        for (has, ordered, part) in [
            (true, true, "by itself (FI_HMEM)."),
            (true, false, "through buffers of the host; the fabric moves that of"),
            (false, true, "through buffers of the host."),
        ] {
            let fake = device::fake::Fake::new(1, 1);
            fake.order_writes(ordered);
            let drivers = Some(vec![fake.driver().unwrap()]);
            let lines = Fabric::new(has).with(|| explain(&resolved, drivers)).unwrap();
            assert!(lines[1].contains(part), "{lines:?}");
        }
    }
}
