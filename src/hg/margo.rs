//! What Margo puts around arguments and results.
//!
//! Before the arguments: the id of the RPC in whose handler the call was made, 8 bytes little
//! endian ([`NO_PARENT`] outside of any). Before the result: a return code, 4 bytes little endian;
//! the result follows only if it is 0.

use super::proc::Writer;
use super::{ProcError, ProviderId, ReturnCode, RpcId};

/// The parent of a call that no handler made: provider 65535, no name.
pub const NO_PARENT: RpcId = RpcId(ProviderId::DEFAULT.get() as u64);

/// Writes what stands before the arguments.
///
/// # Errors
///
/// As [`Writer::put`].
pub fn write_request_prefix(writer: &mut Writer, parent: RpcId) -> Result<(), ProcError> {
    writer.put(&parent.0.to_le_bytes())
}

/// Splits a request's payload into the parent's id and the arguments.
///
/// # Errors
///
/// [`ProcError::End`] when it is shorter than the prefix.
pub fn split_request(payload: &[u8]) -> Result<(RpcId, &[u8]), ProcError> {
    let (prefix, args) = payload.split_first_chunk::<8>().ok_or(ProcError::End {
        at: 0,
        need: 8,
        left: payload.len(),
    })?;
    Ok((RpcId(u64::from_le_bytes(*prefix)), args))
}

/// Writes what stands before the result.
///
/// # Errors
///
/// As [`Writer::put`].
pub fn write_response_prefix(writer: &mut Writer, code: ReturnCode) -> Result<(), ProcError> {
    writer.put(&code.number().to_le_bytes())
}

/// Splits a response's payload into the return code and the result.
///
/// # Errors
///
/// [`ProcError::End`] when it is shorter than the prefix.
pub fn split_response(payload: &[u8]) -> Result<(ReturnCode, &[u8]), ProcError> {
    let (prefix, body) = payload.split_first_chunk::<4>().ok_or(ProcError::End {
        at: 0,
        need: 4,
        left: payload.len(),
    })?;
    Ok((ReturnCode::from_number(i32::from_le_bytes(*prefix)), body))
}
