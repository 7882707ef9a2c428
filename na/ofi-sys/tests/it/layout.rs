//! The declarations against the installed headers: a C program prints sizes, offsets and values,
//! which must be ours. Skipped, with a message, where there is no C compiler or no header.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use ofi_sys::raw::*;

macro_rules! sizes {
    ($ours:ident: $($type:ident { $($field:ident),* $(,)? })*) => {
        $(
            $ours.insert(
                concat!("sizeof(struct ", stringify!($type), ")").to_owned(),
                size_of::<$type>() as u64,
            );
            $(
                $ours.insert(
                    format!("offsetof(struct {}, {})", stringify!($type), stringify!($field)),
                    offset_of!($type, $field) as u64,
                );
            )*
        )*
    };
}

macro_rules! values {
    ($ours:ident: $($name:ident),* $(,)?) => {
        $($ours.insert(stringify!($name).to_owned(), $name as u64);)*
    };
}

fn ours() -> BTreeMap<String, u64> {
    let mut ours = BTreeMap::new();
    sizes! { ours:
        fi_info { next, caps, mode, addr_format, src_addrlen, src_addr, handle, tx_attr, rx_attr,
            ep_attr, domain_attr, fabric_attr, nic }
        fi_tx_attr { caps, mode, op_flags, inject_size, size, iov_limit, rma_iov_limit, tclass }
        fi_rx_attr { caps, mode, op_flags, total_buffered_recv, size, iov_limit }
        fi_ep_attr { type_, protocol, max_msg_size, auth_key_size, auth_key }
        fi_domain_attr { domain, name, threading, control_progress, data_progress, resource_mgmt,
            mr_mode, mr_key_size, cq_data_size, caps, mode, auth_key, auth_key_size, mr_cnt,
            tclass }
        fi_fabric_attr { fabric, name, prov_name, api_version }
        fi_bus_attr { bus_type, attr }
        fi_pci_attr { domain_id, bus_id, device_id, function_id }
        fid { fclass, context, ops }
        fid_nic { device_attr, bus_attr, link_attr }
        fid_fabric { fid, ops, api_version }
        fid_domain { fid, ops, mr }
        fid_ep { fid, ops, cm, msg, rma, tagged, atomic }
        fid_cq { fid, ops }
        fid_av { fid, ops }
        fid_mr { fid, mem_desc, key }
        fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
        fi_ops_fabric { size, domain, trywait }
        fi_ops_domain { size, av_open, cq_open, endpoint }
        fi_ops_ep { size, cancel, setopt }
        fi_ops_cm { size, getname, connect, join }
        fi_ops_mr { size, regattr }
        fi_ops_av { size, insert, remove, lookup, straddr }
        fi_ops_cq { size, read, readfrom, readerr, signal, strerror }
        fi_ops_msg { size, recv, recvmsg, send, sendmsg, inject, injectdata }
        fi_ops_tagged { size, recv, recvmsg, send, sendmsg, inject, injectdata }
        fi_ops_rma { size, read, readmsg, write, writemsg, inject, injectdata }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fi_rma_iov { addr, len, key }
        fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context, auth_key_size,
            auth_key, iface, device }
        fi_av_attr { type_, count, name, flags }
        fi_cq_attr { size, flags, format, wait_obj, wait_set }
        fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        fi_cq_err_entry { op_context, flags, len, buf, data, tag, err, prov_errno, err_data,
            err_data_size }
        fi_context { }
        fi_context2 { internal }
    }
    values! { ours:
        FI_MSG, FI_RMA, FI_TAGGED, FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ,
        FI_REMOTE_WRITE, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, FI_COMPLETION, FI_INJECT,
        FI_INJECT_COMPLETE,
        FI_DELIVERY_COMPLETE, FI_SOURCE, FI_SOURCE_ERR, FI_DIRECTED_RECV, FI_CONTEXT, FI_CONTEXT2,
        FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_ADDR_STR, FI_ADDR_EFA, FI_ADDR_OPX, FI_ADDR_CXI,
        FI_PROTO_SOCK_TCP, FI_PROTO_RXM, FI_PROTO_SHM, FI_PROTO_EFA, FI_PROTO_OPX, FI_PROTO_CXI,
        FI_PROTO_XNET, FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY,
        FI_MR_ENDPOINT, FI_EP_RDM, FI_RM_ENABLED, FI_THREAD_SAFE, FI_PROGRESS_AUTO,
        FI_PROGRESS_MANUAL, FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE, FI_WAIT_FD, FI_GETWAIT, FI_ENABLE,
        FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_EAGAIN, FI_ECANCELED, FI_EAVAIL, FI_ETRUNC,
        FI_ENOKEY, FI_TC_BEST_EFFORT, FI_TC_LOW_LATENCY, FI_TC_DEDICATED_ACCESS, FI_TC_BULK_DATA,
        FI_TC_SCAVENGER, FI_TC_NETWORK_CTRL, FI_EOVERRUN, FI_EKEYREJECTED, FI_EACCES, FI_EPERM,
        FI_ASYNC_IOV, FI_NUMERICHOST, FI_PROTO_UNSPEC, FI_FORMAT_UNSPEC, FI_ERRNO_OFFSET,
        FI_BUS_PCI, FI_EIO, FI_ENOSYS, FI_SOCKADDR_IB, FI_HMEM, FI_MR_HMEM, FI_HMEM_CUDA,
        FI_HMEM_ROCR, FI_HMEM_ZE,
    }
    ours
}

/// Returns the values that the C compiler gives, or why it cannot be asked.
fn theirs(expressions: impl Iterator<Item = String>) -> Result<BTreeMap<String, u64>, String> {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in ["fabric", "fi_errno", "fi_domain", "fi_endpoint", "fi_cm", "fi_tagged", "fi_rma"]
    {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    program += "int main(void) {\n";
    for expression in expressions {
        // The only name that Rust does not take as it is.
        let c = expression.replace("type_)", "type)");
        writeln!(program, "printf(\"%s=%llu\\n\", \"{expression}\", (unsigned long long)({c}));")
            .unwrap();
    }
    program += "return 0; }\n";
    let dir = std::env::temp_dir().join(format!("margo-ofi-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let result = match compiled {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("rdma/fabric.h"), "not a missing header: {said}");
            Err("no headers of libfabric (Debian: libfabric-dev)".to_owned())
        }
        Ok(_) => Ok(String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()),
    };
    std::fs::remove_dir_all(&dir).unwrap();
    let pairs = |text: String| {
        let pair = |line: &str| {
            let (name, value) = line.rsplit_once('=').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        text.lines().map(pair).collect()
    };
    result.map(pairs)
}

/// The identifiers in the sources below a folder; the fake library and its tests left out.
fn words(folder: &Path) -> BTreeSet<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let within = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    within
        .filter(|path| {
            !["fake", "fake_fabric.rs", "fake_tests"].iter().any(|of| path.ends_with(of))
        })
        .flat_map(|path| match path.is_dir() {
            true => words(&path),
            false => {
                let text = std::fs::read_to_string(path).unwrap();
                text.split(|c| !is_word(c)).map(str::to_owned).collect()
            }
        })
        .collect()
}

/// Constants and fields of structures that are declared and used are compared, each by its name.
#[test]
fn all_that_is_used_is_compared() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (ours, mut words) = (ours(), words(&own.join("../ofi/src")));
    // Of this crate all but the declarations.
    for name in ["call.rs", "library.rs"] {
        let text = std::fs::read_to_string(own.join("src").join(name)).unwrap();
        words.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
    }
    let (mut within, mut count) = (None, 0);
    for line in include_str!("../../src/raw.rs").lines() {
        let declared = line.trim().strip_prefix("pub ").unwrap_or_default();
        let name = |rest: &str| rest.split([' ', ':']).next().unwrap_or_default().to_owned();
        let used = match declared.split_once(' ') {
            Some(("const", rest)) => Some(name(rest)).filter(|name| words.contains(name)),
            Some(("struct", rest)) => {
                within = Some(name(rest)).filter(|name| words.contains(name));
                within.as_ref().map(|name| format!("sizeof(struct {name})"))
            }
            // What is in a union begins where it does.
            Some(("union", _)) => {
                within = None;
                continue;
            }
            Some((field, _)) if field.ends_with(':') && words.contains(&name(field)) => {
                let of = |of: &String| format!("offsetof(struct {of}, {})", name(field));
                within.as_ref().map(of)
            }
            _ => continue,
        };
        let Some(used) = used else { continue };
        count += 1;
        assert!(ours.contains_key(&used), "{used} is used, and not compared");
    }
    assert!(count > 200, "{count} are compared");
}

#[test]
fn declarations_are_those_of_the_installed_headers() {
    let ours = ours();
    let theirs = match theirs(ours.keys().cloned()) {
        Ok(theirs) => theirs,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    // Structures that later headers have made longer, at their end; the library serves the ones
    // declared here, see `Library`.
    let may_grow = |name: &str| name.starts_with("sizeof(") && name != "sizeof(struct fi_context)";
    for (name, value) in &ours {
        let there = theirs[name];
        let fine = there == *value || (may_grow(name) && there > *value);
        assert!(fine, "{name}: {value} here, {there} in the headers");
    }
}

/// The declarations are compared without a compiler, with the values of 1.17 on 64-bit machines.
#[test]
#[cfg(target_pointer_width = "64")]
fn declarations_are_those_of_1_17() {
    let ours = ours();
    for (name, value) in [
        ("sizeof(struct fi_info)", 120),
        ("sizeof(struct fi_domain_attr)", 192),
        ("sizeof(struct fi_ep_attr)", 96),
        ("sizeof(struct fi_tx_attr)", 80),
        ("sizeof(struct fi_cq_tagged_entry)", 48),
        ("sizeof(struct fi_cq_err_entry)", 80),
        ("sizeof(struct fi_mr_attr)", 80),
        ("sizeof(struct fi_context)", 32),
        ("sizeof(struct fi_context2)", 64),
        ("FI_PROTO_XNET", 25),
        ("FI_TAGGED", 8),
    ] {
        assert_eq!(ours[name], value, "{name}");
    }
}
