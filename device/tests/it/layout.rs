//! The declarations against the headers, where they are: a C program prints sizes, offsets and
//! values, and the symbols that the names of functions stand for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use device::level_zero as ze;
use device::raw::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, OTHER_SYMBOLS};
use device::raw::{SYMBOLS, VALUES};

/// Values by the expressions of C that have them; symbols by names of functions behind `&`.
type Layout = BTreeMap<String, String>;

fn layout(values: &[(&str, i64)], sizes: &[(&str, usize)], symbols: &[(&str, &str)]) -> Layout {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.to_string()));
    let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), size.to_string()));
    let symbols = symbols.iter().map(|(name, symbol)| (format!("&{name}"), (*symbol).to_owned()));
    values.chain(sizes).chain(symbols).collect()
}

fn of_cuda() -> Layout {
    let sizes = [
        ("sizeof(CUmemLocation)", size_of::<CUmemLocation>()),
        ("sizeof(CUmemAllocationProp)", size_of::<CUmemAllocationProp>()),
        ("sizeof(CUmemAccessDesc)", size_of::<CUmemAccessDesc>()),
        ("offsetof(CUmemLocation, id)", offset_of!(CUmemLocation, id)),
        ("offsetof(CUmemAccessDesc, flags)", offset_of!(CUmemAccessDesc, flags)),
        (
            "offsetof(CUmemAllocationProp, requestedHandleTypes)",
            offset_of!(CUmemAllocationProp, requestedHandleTypes),
        ),
        ("offsetof(CUmemAllocationProp, location)", offset_of!(CUmemAllocationProp, location)),
        ("offsetof(CUmemAllocationProp, allocFlags)", offset_of!(CUmemAllocationProp, allocFlags)),
    ];
    layout(VALUES, &sizes, SYMBOLS)
}

/// The values that CUDA's must be the same as.
fn of_hip() -> Layout {
    let values = VALUES.iter().filter_map(|(name, value)| {
        let same = match *name {
            "CUDA_SUCCESS" => "hipSuccess",
            "CUDA_ERROR_INVALID_VALUE" => "hipErrorInvalidValue",
            "CUDA_ERROR_OUT_OF_MEMORY" => "hipErrorOutOfMemory",
            "CUDA_ERROR_NO_DEVICE" => "hipErrorNoDevice",
            "CUDA_ERROR_ECC_UNCORRECTABLE" => "hipErrorECCNotCorrectable",
            "CUDA_ERROR_NOT_READY" => "hipErrorNotReady",
            "CUDA_ERROR_ILLEGAL_ADDRESS" => "hipErrorIllegalAddress",
            "CUDA_ERROR_NOT_SUPPORTED" => "hipErrorNotSupported",
            "CU_STREAM_NON_BLOCKING" => "hipStreamNonBlocking",
            "CU_EVENT_DISABLE_TIMING" => "hipEventDisableTiming",
            "CU_MEMHOSTREGISTER_PORTABLE" => "hipHostRegisterPortable",
            "CU_POINTER_ATTRIBUTE_MEMORY_TYPE" => "HIP_POINTER_ATTRIBUTE_MEMORY_TYPE",
            "CU_POINTER_ATTRIBUTE_IS_MANAGED" => "HIP_POINTER_ATTRIBUTE_IS_MANAGED",
            "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL" => "HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
            "CU_POINTER_ATTRIBUTE_RANGE_START_ADDR" => "HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR",
            "CU_POINTER_ATTRIBUTE_RANGE_SIZE" => "HIP_POINTER_ATTRIBUTE_RANGE_SIZE",
            "CU_MEMORYTYPE_DEVICE" => "hipMemoryTypeDevice",
            "CU_MEM_LOCATION_TYPE_DEVICE" => "hipMemLocationTypeDevice",
            "CU_MEM_ALLOCATION_TYPE_PINNED" => "hipMemAllocationTypePinned",
            "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR" => "hipMemHandleTypePosixFileDescriptor",
            "CU_MEM_ACCESS_FLAGS_PROT_READWRITE" => "hipMemAccessFlagsProtReadWrite",
            "CU_MEM_ALLOC_GRANULARITY_MINIMUM" => "hipMemAllocationGranularityMinimum",
            _ => return None,
        };
        Some((same, *value))
    });
    let sizes = [
        ("sizeof(hipMemLocation)", size_of::<CUmemLocation>()),
        ("sizeof(hipMemAccessDesc)", size_of::<CUmemAccessDesc>()),
        ("offsetof(hipMemAllocationProp, location)", offset_of!(CUmemAllocationProp, location)),
        ("offsetof(hipMemAllocationProp, allocFlags)", offset_of!(CUmemAllocationProp, allocFlags)),
    ];
    let symbols: Vec<_> = OTHER_SYMBOLS.iter().map(|symbol| (*symbol, *symbol)).collect();
    layout(&values.collect::<Vec<_>>(), &sizes, &symbols)
}

fn of_level_zero() -> Layout {
    let fields = offset_of!(ze::ZeDesc, fields);
    let sizes = [
        ("sizeof(ze_device_properties_t)", size_of::<ze::ZeDeviceProperties>()),
        ("sizeof(ze_device_memory_properties_t)", size_of::<ze::ZeMemoryProperties>()),
        ("sizeof(ze_pci_ext_properties_t)", size_of::<ze::ZePciProperties>()),
        ("sizeof(ze_memory_allocation_properties_t)", size_of::<ze::ZeAllocProperties>()),
        ("offsetof(ze_device_properties_t, type)", offset_of!(ze::ZeDeviceProperties, kind)),
        ("offsetof(ze_device_properties_t, name)", offset_of!(ze::ZeDeviceProperties, name)),
        (
            "offsetof(ze_device_memory_properties_t, totalSize)",
            offset_of!(ze::ZeMemoryProperties, bytes),
        ),
        ("offsetof(ze_pci_ext_properties_t, address)", offset_of!(ze::ZePciProperties, address)),
        ("offsetof(ze_context_desc_t, flags)", fields),
        ("offsetof(ze_device_mem_alloc_desc_t, ordinal)", fields + 4),
        ("offsetof(ze_command_queue_desc_t, mode)", fields + 12),
        ("offsetof(ze_event_pool_desc_t, count)", fields + 4),
        ("offsetof(ze_event_desc_t, signal)", fields + 4),
        ("offsetof(ze_event_desc_t, wait)", fields + 8),
    ];
    layout(ze::VALUES, &sizes, ze::ZE_SYMBOLS)
}

/// Asks the header; `before`: lines of C before it. `None`: it is not there, or no compiler.
fn of_header(ours: &Layout, before: &str, header: &str) -> Option<Layout> {
    let mut program = format!("{before}#include <{header}>\n#include <stddef.h>\n");
    program.push_str("#include <stdio.h>\n#define S_(x) #x\n#define S(x) S_(x)\n");
    program.push_str("int main(void) {\n");
    for name in ours.keys() {
        match name.strip_prefix('&') {
            Some(function) => {
                // The header's own check that there is such a function, and its symbol.
                writeln!(program, "(void)sizeof(&{function}); puts(S({function}) \" {name}\");")
            }
            None => writeln!(program, "printf(\"%lld {name}\\n\", (long long)({name}));"),
        }
        .unwrap();
    }
    program.push_str("return 0; }\n");
    let file = header.replace('/', "-");
    let folder = std::env::temp_dir().join(format!("layout-{file}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let result = match compiled {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // Anything else than a missing header is a wrong declaration.
            assert!(text.contains(&format!("{header}: No such file")), "{text}");
            Err(format!("{header} is missing: name its folder in CPATH"))
        }
        Ok(_) => Ok(Command::new(&binary).output().unwrap()),
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let output = match result {
        Ok(output) => output,
        Err(why) => {
            println!("SKIPPED: {why}");
            return None;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    Some(lines.map(|(value, name)| (name.to_owned(), value.to_owned())).collect())
}

#[test]
fn the_declarations_are_those_of_the_headers() {
    let of_amd = "#define __HIP_PLATFORM_AMD__\n";
    for (ours, before, header) in [
        (of_cuda(), "", "cuda.h"),
        (of_hip(), of_amd, "hip/hip_runtime_api.h"),
        (of_level_zero(), "", "level_zero/ze_api.h"),
    ] {
        if let Some(theirs) = of_header(&ours, before, header) {
            assert_eq!(ours, theirs, "{header}");
        }
    }
}
