//! The properties of this machine that matter to margo, in brief.

use std::fs;

use margo::device::{DeviceError, DeviceInfo, Driver};
use serde::Serialize;

/// Facts about the machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// Kernel name and release.
    kernel: String,
    /// Processor architecture.
    architecture: &'static str,
    /// CPUs that this process may use.
    cpus: usize,
    /// NUMA nodes that are online.
    numa_nodes: usize,
    /// Size of an ordinary page, bytes.
    page_bytes: usize,
    /// Sizes of huge pages, bytes, and how many are reserved.
    huge_pages: Vec<HugePages>,
    /// When the kernel uses huge pages by itself: `always`, `madvise` or `never`.
    transparent_huge_pages: Option<String>,
    /// The answer of the kernel that is asked for TLS on sockets, which nothing uses.
    kernel_tls: String,
    /// GPUs whose memory can be moved.
    gpus: Vec<Gpu>,
    /// The driver of the GPUs, or why there is none.
    gpu_driver: String,
}

/// A GPU.
#[derive(Debug, Clone, Serialize)]
struct Gpu {
    index: u32,
    name: String,
    pci: String,
    bytes: u64,
    numa_node: Option<u32>,
}

/// The drivers that there are, or why none can be used, and their GPUs.
fn gpus(drivers: Vec<Result<Driver, DeviceError>>) -> (String, Vec<Gpu>) {
    let (mut found, mut refused, mut gpus) = (Vec::new(), Vec::new(), Vec::new());
    let gpu = |device: DeviceInfo| {
        let DeviceInfo { index, name, pci, bytes, numa_node, .. } = device;
        Gpu { index, name, pci, bytes, numa_node }
    };
    for driver in drivers {
        match driver.and_then(|driver| Ok((driver.devices()?, driver))) {
            Ok((devices, driver)) => {
                found.push(format!("{}, {}", driver.file(), driver.interface()));
                gpus.extend(devices.into_iter().map(gpu));
            }
            Err(error) => refused.push(error.to_string()),
        }
    }
    let told = if found.is_empty() { refused } else { found };
    (told.join("; "), gpus)
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct HugePages {
    bytes: u64,
    reserved: u64,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let uname = rustix::system::uname();
        let (gpu_driver, gpus) = gpus(Driver::all());
        Self {
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            architecture: std::env::consts::ARCH,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: read("/sys/devices/system/node/online").map_or(1, |list| elements(&list)),
            page_bytes: rustix::param::page_size(),
            huge_pages: huge_pages(),
            transparent_huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text)),
            kernel_tls: match margo::na::tcp::kernel_tls() {
                Ok(()) => "there".to_owned(),
                Err(error) => format!("none: {error}"),
            },
            gpus,
            gpu_driver,
        }
    }

    /// The lines for people: what, and its value.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut pages = format!("{} KiB", self.page_bytes / 1024);
        for huge in &self.huge_pages {
            let size = huge.bytes / (1 << 20);
            pages += &format!(", {size} MiB ({} reserved)", huge.reserved);
        }
        if let Some(policy) = &self.transparent_huge_pages {
            pages += &format!(", transparent huge pages: {policy}");
        }
        let mut lines = vec![
            ("kernel", format!("{} {}", self.kernel, self.architecture)),
            ("CPUs", self.cpus.to_string()),
            ("NUMA nodes", self.numa_nodes.to_string()),
            ("pages", pages),
            ("kernel TLS", format!("{}; not used", self.kernel_tls)),
        ];
        match self.gpus.is_empty() {
            true => lines.push(("GPUs", format!("none: {}", self.gpu_driver))),
            false => lines.push(("GPUs", self.gpu_driver.clone())),
        }
        let gpu = |gpu: &Gpu| {
            let Gpu { index, name, pci, bytes, numa_node } = gpu;
            let node = numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
            ("", format!("device {index}: {name} at {pci}, {} MiB{node}", bytes >> 20))
        };
        lines.extend(self.gpus.iter().map(gpu));
        if !self.gpus.is_empty() {
            let ways = "their memory moves through pinned buffers; between processes of one user \
                        over na+sm that set margo.device.share, by the device alone; over the \
                        devices marked FI_HMEM below with mercury.na_request_mem_device, by these";
            lines.push(("", ways.to_owned()));
        }
        lines
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// How many numbers a kernel list such as `0-3,8` has; at least 1.
fn elements(list: &str) -> usize {
    let span = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.checked_sub(first)?.saturating_add(1))
        }
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').filter_map(span).fold(0, usize::saturating_add).max(1)
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

fn huge_pages() -> Vec<HugePages> {
    let Ok(folder) = fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut found: Vec<_> = folder
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let size = path.file_name()?.to_str()?.strip_prefix("hugepages-")?;
            let bytes = size.strip_suffix("kB")?.parse::<u64>().ok()?.checked_mul(1024)?;
            let reserved = read(path.join("nr_hugepages").to_str()?)?.parse().ok()?;
            Some(HugePages { bytes, reserved })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_counted() {
        for (list, count) in [("0", 1), ("0-3", 4), ("0-1,4,6-7", 5), ("", 1), ("x", 1), ("3-1", 1)]
        {
            assert_eq!(elements(list), count, "{list}");
        }
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("always"), None);
    }

    #[test]
    fn gpus_are_listed_with_their_driver() {
        let other = margo::device::fake::Fake::new(1, 2);
        other.fail("cuDeviceGetCount", 0, margo::device::raw::CUDA_ERROR_UNKNOWN);
        let (told, gpus) =
            gpus(vec![other.driver(), margo::device::fake::Fake::new(2, 1).driver()]);
        let names: Vec<_> = gpus.iter().map(|gpu| (gpu.index, &*gpu.pci)).collect();
        assert_eq!(names, [(0, "00000000:f0:00.0"), (1, "00000000:f1:00.0")]);
        assert_eq!(told, "the fake driver, CUDA 12.4");
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::new();
        assert!(machine.cpus >= 1 && machine.numa_nodes >= 1 && machine.page_bytes >= 4096);
        assert!(machine.kernel.starts_with("Linux "));
        assert!(machine.lines().iter().all(|(_, value)| !value.is_empty()));
    }
}
