//! The library, its texts, and contexts with the settings of an endpoint.

use std::ffi::{CStr, CString};
use std::ptr;

use ucx_sys::*;

use super::packing;
use crate::addressing::address::Settings;
use na_core::Error;

/// Returns UCX's text for a status.
pub(crate) fn text(ucp: &Ucp, status: ucs_status_t) -> String {
    // SAFETY: may be asked for any number.
    let text = unsafe { ucp.ucs_status_string(status) };
    // SAFETY: a constant string, or one in a buffer of the calling thread, which is read before the
    // next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Which UCX it is.
pub(crate) fn version(ucp: &Ucp) -> String {
    // SAFETY: takes nothing, and may be asked at any time.
    let version = unsafe { ucp.ucp_get_version_string() };
    // SAFETY: a constant string of the library's, which stays.
    let version = unsafe { CStr::from_ptr(version) };
    version.to_string_lossy().into_owned()
}

pub(crate) fn check(ucp: &Ucp, status: ucs_status_t, what: &str) -> Result<(), Error> {
    match status {
        UCS_OK => Ok(()),
        status => Err(Error::Unavailable {
            transport: "ucx",
            reason: format!("{what}: {}", text(ucp, status)),
        }),
    }
}

/// The library.
pub(crate) fn library() -> Result<&'static Ucp, Error> {
    let unavailable = |problem: String| Error::Unavailable {
        transport: "ucx",
        reason: format!(
            "{problem}; install UCX 1.13 or later (Debian: libucx0), or name its libucp in \
             MARGO_LIBUCP"
        ),
    };
    let ucp = ucx_sys::library().map_err(|error| unavailable(error.to_string()))?;
    let version = version(ucp);
    match is_too_old(&version) {
        true => Err(unavailable(format!("UCX {version} is older than 1.13"))),
        false => Ok(ucp),
    }
}

/// Returns whether a version is known to be older than the declarations. The functions are all
/// there since 1.10, and UCX would only warn.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (UCP_API_MAJOR, UCP_API_MINOR),
        _ => false,
    }
}

/// Returns the text that `print` writes into the stream that it gets, which is open until `print`
/// returns; empty if there is no memory for it.
pub(crate) fn printed(print: impl FnOnce(*mut libc::FILE)) -> String {
    let (mut text, mut len) = (ptr::null_mut(), 0);
    // SAFETY: both stay where they are until the stream is closed, below.
    let stream = unsafe { libc::open_memstream(&mut text, &mut len) };
    if stream.is_null() {
        return String::new();
    }
    print(stream);
    // SAFETY: opened above, closed once; then the text is complete.
    let closed = unsafe { libc::fclose(stream) };
    if closed != 0 || text.is_null() {
        return String::new();
    }
    // SAFETY: the stream has left a string that ends with a zero, and is ours.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: allocated by the stream, for us to free; used no more.
    unsafe { libc::free(text.cast()) };
    copy
}

/// UCX's description of what it finds here with these settings (`ucp_context_print_info`).
pub(crate) fn described(ucp: &Ucp, settings: &Settings) -> Result<String, Error> {
    let context = create_context(ucp, settings)?;
    // SAFETY: a context that was made, and an open stream.
    let text = printed(|stream| unsafe { ucp.ucp_context_print_info(context, stream) });
    // SAFETY: made above, and nothing was made of it.
    unsafe { ucp.ucp_cleanup(context) };
    Ok(text)
}

/// Traffic class of all transports over InfiniBand and RoCE, without the prefix `UCX_`. Source:
/// `uct_ib_iface_config_table` in `ib_iface.c`.
const CLASS: &str = "IB_TRAFFIC_CLASS";

/// Returns whether the environment says it, for these or for one of them
/// (`UCX_RC_VERBS_TRAFFIC_CLASS` …): it knows better.
fn class_is_in_environment() -> bool {
    std::env::vars_os().any(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("UCX_") && name.ends_with("_TRAFFIC_CLASS")
    })
}

/// Writes the settings of an endpoint into a configuration.
fn configure(ucp: &Ucp, config: *mut ucp_config_t, settings: &Settings) -> Result<(), Error> {
    let modify = |name: &str, value: &str| {
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else {
            return UCS_OK;
        };
        // SAFETY: a configuration that was read; both strings live through the call.
        unsafe { ucp.ucp_config_modify(config, name.as_ptr(), value.as_ptr()) }
    };
    let mut changes = vec![("TLS", settings.tls.as_str())];
    changes.extend(settings.device.as_deref().map(|device| ("NET_DEVICES", device)));
    // As na_ucx.c (`na_ucp_config_init`), unless the environment says otherwise: no handlers of
    // fatal signals, a port can be listened at again at once, and what fails is told by us.
    let defaults = [("HANDLE_ERRORS", "none"), ("LOG_LEVEL", "fatal"), ("CM_REUSEADDR", "y")];
    let packing = packing::settings();
    let packing = packing.iter().map(|(name, value)| (*name, value.as_str()));
    let is_unset = |(name, _): &(&str, &str)| std::env::var_os(format!("UCX_{name}")).is_none();
    changes.extend(defaults.into_iter().chain(packing).filter(is_unset));
    for (name, value) in changes {
        check(ucp, modify(name, value), &format!("UCX_{name} cannot be `{value}`"))?;
    }
    if let Some(families) = settings.families {
        // Settings of UCT are named without the transport before 1.17, and with it since.
        let statuses = ["AF_PRIO", "TCP_AF_PRIO"].map(|name| modify(name, families));
        if !statuses.contains(&UCS_OK) {
            check(ucp, statuses[0], "UCX_TCP_AF_PRIO cannot be set")?;
        }
    }
    if let Some(class) = settings.class.filter(|_| !class_is_in_environment()) {
        // A setting of UCT's transports, which UCP keeps for those that have it. Later versions
        // than 1.20 do not know it where UCX has no InfiniBand; then nothing here has classes.
        let status = modify(CLASS, &class.to_string());
        tracing::debug!(class, status = text(ucp, status), "UCX_{CLASS}");
    }
    Ok(())
}

/// Makes a context. The caller destroys it.
pub(crate) fn create_context(ucp: &Ucp, settings: &Settings) -> Result<ucp_context_h, Error> {
    let mut config = ptr::null_mut();
    // SAFETY: neither prefix nor file are asked for; the result has room.
    let status = unsafe { ucp.ucp_config_read(ptr::null(), ptr::null(), &mut config) };
    check(ucp, status, "cannot read the configuration (the variables UCX_… of the environment)")?;
    let result = configure(ucp, config, settings);
    // SAFETY: plain data, for which all zero is valid; the mask says which fields are read.
    let mut params: ucp_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = u64::from(UCP_PARAM_FIELD_FEATURES);
    // With the feature every message over shared memory asks whether the peer sleeps.
    let wakes = if settings.wakes { UCP_FEATURE_WAKEUP } else { 0 };
    let reaches = if settings.remote_keys { UCP_FEATURE_RMA } else { 0 };
    params.features = u64::from(UCP_FEATURE_AM | wakes | reaches);
    let mut context = ptr::null_mut();
    let result = result.and_then(|()| {
        // SAFETY: the version is that of the declarations; the parameters live through the call.
        let status = unsafe {
            ucp.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &mut context)
        };
        let device = settings.device.as_deref().unwrap_or("all");
        let what = format!(
            "there is no transport for UCX_TLS={} and UCX_NET_DEVICES={device} here (`ucx_info -d` \
             lists what there is)",
            settings.tls
        );
        check(ucp, status, &what)
    });
    // SAFETY: it was read above and is used no more.
    unsafe { ucp.ucp_config_release(config) };
    result.map(|()| context)
}

#[cfg(test)]
mod tests {
    use super::is_too_old;

    #[test]
    fn older_versions_than_the_declarations_are_known() {
        for old in ["1.10.0", "1.11.2", "1.12.1", "0.99"] {
            assert!(is_too_old(old), "{old}");
        }
        // What says something else is taken at the word of its functions.
        for taken in ["1.13.0", "1.13.1", "1.22.0-rc1", "2.0.0", "1.13", "1.x", "", "main"] {
            assert!(!is_too_old(taken), "{taken}");
        }
    }
}
