//! The declarations against the installed headers: a C program prints sizes, offsets and values,
//! which must be ours. Skipped, with a message, where there is no C compiler or no header.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use ucx_sys::*;

macro_rules! offsets {
    ($ours:ident: $($type:ident { $($field:ident),* $(,)? })*) => {
        $($(
            $ours.insert(
                concat!("offsetof(", stringify!($type), ", ", stringify!($field), ")").to_owned(),
                offset_of!($type, $field) as i64,
            );
        )*)*
    };
}

macro_rules! values {
    ($ours:ident: $($name:ident),* $(,)?) => {
        $($ours.insert(stringify!($name).to_owned(), i64::from($name));)*
    };
}

fn ours() -> BTreeMap<String, i64> {
    let mut ours = BTreeMap::new();
    // Later versions append fields, so sizes only of what UCX writes as a whole.
    ours.insert("sizeof(ucs_sock_addr_t)".into(), size_of::<ucs_sock_addr_t>() as i64);
    ours.insert("sizeof(ucp_dt_iov_t)".into(), size_of::<ucp_dt_iov_t>() as i64);
    ours.insert("sizeof(ucp_generic_dt_ops_t)".into(), size_of::<ucp_generic_dt_ops_t>() as i64);
    ours.insert("sizeof(ucs_status_t)".into(), size_of::<ucs_status_t>() as i64);
    offsets! { ours:
        ucp_params_t { field_mask, features, name }
        ucp_worker_params_t { field_mask, thread_mode, events, user_data, flags, name }
        ucp_err_handler_t { cb, arg }
        ucp_listener_conn_handler_t { cb, arg }
        ucp_ep_params_t {
            field_mask, address, err_mode, err_handler, user_data, flags, sockaddr, conn_request,
            name, local_sockaddr,
        }
        ucp_listener_params_t { field_mask, sockaddr, accept_handler, conn_handler }
        ucp_listener_attr_t { field_mask, sockaddr }
        ucp_conn_request_attr_t { field_mask, client_address }
        ucp_am_handler_param_t { field_mask, id, flags, cb, arg }
        ucp_am_recv_param_t { recv_attr, reply_ep }
        ucp_request_param_t {
            op_attr_mask, flags, request, cb, datatype, user_data, reply_buffer, memory_type,
            recv_info, memh,
        }
        ucs_sock_addr_t { addr, addrlen }
        ucp_dt_iov_t { buffer, length }
        ucp_generic_dt_ops_t { start_pack, start_unpack, packed_size, pack, unpack, finish }
        ucp_mem_map_params_t { field_mask, address, length, flags, prot, memory_type }
    }
    values! { ours:
        UCP_DATATYPE_IOV, UCP_OP_ATTR_FIELD_DATATYPE,
        UCP_AM_SEND_FLAG_RNDV, UCP_AM_RECV_ATTR_FLAG_RNDV,
        UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        UCS_OK, UCS_INPROGRESS, UCS_ERR_INVALID_PARAM, UCS_ERR_BUSY, UCS_ERR_CANCELED, UCS_ERR_LAST,
        UCS_ERR_UNREACHABLE, UCS_ERR_CONNECTION_RESET, UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_REJECTED,
        UCP_FEATURE_WAKEUP, UCP_FEATURE_AM, UCP_FEATURE_RMA,
        UCP_PARAM_FIELD_FEATURES, UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCS_THREAD_MODE_SERIALIZED,
        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLER,
        UCP_EP_PARAM_FIELD_FLAGS, UCP_EP_PARAM_FIELD_SOCK_ADDR, UCP_EP_PARAM_FIELD_CONN_REQUEST,
        UCP_EP_PARAMS_FLAGS_CLIENT_SERVER, UCP_EP_CLOSE_FLAG_FORCE,
        UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER,
        UCP_LISTENER_PARAM_FIELD_SOCK_ADDR, UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        UCP_LISTENER_ATTR_FIELD_SOCKADDR, UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR,
        UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        UCP_AM_HANDLER_PARAM_FIELD_CB, UCP_AM_HANDLER_PARAM_FIELD_ARG, UCP_AM_FLAG_WHOLE_MSG,
        UCP_AM_SEND_FLAG_REPLY, UCP_AM_SEND_FLAG_EAGER, UCP_AM_RECV_ATTR_FIELD_REPLY_EP,
        UCP_AM_RECV_ATTR_FLAG_DATA, UCP_AM_RECV_ATTR_FLAG_RNDV, UCP_OP_ATTR_FIELD_CALLBACK,
        UCP_OP_ATTR_FIELD_USER_DATA,
        UCP_OP_ATTR_FIELD_FLAGS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        UCP_MEM_MAP_PARAM_FIELD_PROT,
        UCP_MEM_MAP_PROT_LOCAL_READ, UCP_MEM_MAP_PROT_LOCAL_WRITE,
        UCP_MEM_MAP_PROT_REMOTE_READ, UCP_MEM_MAP_PROT_REMOTE_WRITE,
        UCS_MEMORY_TYPE_HOST, UCP_API_MAJOR,
    }
    ours
}

/// Returns the values that a C program gives the expressions, or the reason why there is no such
/// program.
fn theirs(expressions: impl Iterator<Item = String>) -> Result<BTreeMap<String, i64>, String> {
    let mut program =
        String::from("#include <ucp/api/ucp.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    program.push_str("int main(void) {\n");
    for expression in expressions {
        writeln!(program, "printf(\"%lld %s\\n\", (long long)({expression}), \"{expression}\");")
            .unwrap();
    }
    program.push_str("return 0; }\n");
    let directory = std::env::temp_dir().join(format!("ucx-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let result = match compiled {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // Anything else than missing headers is a wrong declaration.
            assert!(text.contains("ucp/api/ucp.h: No such file"), "{text}");
            Err("the headers of UCX are missing (Debian: libucx-dev)".into())
        }
        Ok(_) => Ok(Command::new(&binary).output().unwrap()),
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8(result?.stdout).unwrap();
    let entry = |line: &str| {
        let (value, name) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    Ok(text.lines().map(entry).collect())
}

/// The identifiers in the sources of the plugin.
fn words(directory: &Path) -> BTreeSet<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let within = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    within
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
    let ours = ours();
    let words = words(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../ucx/src"));
    let declarations = include_str!("../../src/bindings.rs");
    let name = |rest: &str| rest.split([' ', ':', ';']).next().unwrap_or_default().to_owned();
    let aliases = declarations.lines().filter_map(|line| {
        let (alias, of) = line.strip_prefix("pub type ")?.split_once(" = ")?;
        Some((name(of), alias.to_owned()))
    });
    let aliases: BTreeMap<String, String> = aliases.collect();
    let (mut within, mut count) = (None, 0);
    for line in declarations.lines() {
        let declared = line.trim().strip_prefix("pub ").unwrap_or_default();
        let used = match declared.split_once(' ') {
            Some(("const", rest)) => Some(name(rest)).filter(|name| words.contains(name)),
            Some(("struct", rest)) => {
                let of = aliases.get(&name(rest)).cloned().unwrap_or_else(|| name(rest));
                // `Ucp` is the library itself.
                within = Some(of).filter(|name| words.contains(name) && name != "Ucp");
                continue;
            }
            // What is in a union begins where it does.
            Some(("union", _)) => {
                within = None;
                continue;
            }
            Some((field, _)) if field.ends_with(':') && words.contains(&name(field)) => {
                within.as_ref().map(|of| format!("offsetof({of}, {})", name(field)))
            }
            _ => continue,
        };
        // The interface that is asked for: older than what is installed, or the same.
        let Some(used) = used.filter(|used| used != "UCP_API_MINOR") else { continue };
        count += 1;
        assert!(ours.contains_key(&used), "{used} is used, and not compared");
    }
    assert!(count > 80, "{count} are compared");
}

#[test]
fn the_declarations_are_those_of_the_installed_headers() {
    let ours = ours();
    match theirs(ours.keys().cloned()) {
        Ok(theirs) => assert_eq!(ours, theirs),
        Err(reason) => eprintln!("SKIPPED: {reason}"),
    }
}

/// The declarations are compared with numbers, for machines without the headers (x86-64 and other
/// LP64 systems).
#[test]
fn the_declarations_are_those_of_ucx_1_13() {
    let ours = ours();
    for (what, value) in [
        ("offsetof(ucp_ep_params_t, sockaddr)", 56),
        ("offsetof(ucp_request_param_t, cb)", 16),
        ("offsetof(ucp_request_param_t, recv_info)", 56),
        ("offsetof(ucp_am_recv_param_t, reply_ep)", 8),
        ("UCP_FEATURE_AM", 64),
        ("UCS_ERR_CONNECTION_RESET", -25),
        ("UCS_ERR_CANCELED", -16),
    ] {
        assert_eq!(ours[what], value, "{what}");
    }
}
