//! The frame that Margo puts around arguments and results.
//!
//! Before the arguments stands the id of the RPC in whose handler the call was made, 8 bytes little
//! endian ([`NO_PARENT`] outside of any). Before the result stands a return code, 4 bytes little
//! endian; the result follows only if it is 0. Behind another code our own peers write a text that
//! explains it, and a mark, which says that the code is of their runtime. C peers write nothing
//! there, and their code may come from the runtime or from a handler.

use crate::proc::{self, Writer};
use crate::wire::OWN;
use crate::{ProcError, ProviderId, ReturnCode, RpcId};

/// The parent of a call that no handler made: provider 65535, no name.
pub const NO_PARENT: RpcId = RpcId(ProviderId::DEFAULT.get() as u64);

/// Writes what stands before the arguments.
///
/// # Errors
///
/// As [`Writer::put`].
#[inline]
pub fn write_request_prefix(writer: &mut Writer, parent: RpcId) -> Result<(), ProcError> {
    writer.put(&parent.0.to_le_bytes())
}

/// Splits a request's payload into the parent's id and the arguments.
///
/// # Errors
///
/// [`ProcError::End`] when it is shorter than the prefix.
#[inline]
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
#[inline]
pub fn write_response_prefix(writer: &mut Writer, code: ReturnCode) -> Result<(), ProcError> {
    writer.put(&code.number().to_le_bytes())
}

/// Splits a response's payload into the return code and the result.
///
/// # Errors
///
/// [`ProcError::End`] when it is shorter than the prefix.
#[inline]
pub fn split_response(payload: &[u8]) -> Result<(ReturnCode, &[u8]), ProcError> {
    let (prefix, body) = payload.split_first_chunk::<4>().ok_or(ProcError::End {
        at: 0,
        need: 4,
        left: payload.len(),
    })?;
    Ok((ReturnCode::from_number(i32::from_le_bytes(*prefix)), body))
}

/// Writes a response's payload that has no result: the code, which is not
/// [`Success`](ReturnCode::Success), a text that explains it, and the mark of our own peers.
///
/// # Errors
///
/// As [`Writer::put`].
pub fn write_failure(
    writer: &mut Writer,
    code: ReturnCode,
    detail: Option<&str>,
) -> Result<(), ProcError> {
    write_response_prefix(writer, code)?;
    if let Some(detail) = detail {
        proc::to_writer(writer, detail)?;
    }
    writer.put(&OWN)
}

/// Reads what follows a code that is not [`Success`](ReturnCode::Success): the text that explains
/// it, if one of our own peers has sent it. `None`: it is of another peer, any of whose handlers
/// may have run and chosen the code.
pub fn read_failure(body: &[u8]) -> Option<String> {
    let detail = body.strip_suffix(&OWN)?;
    Some(proc::from_slice(detail).unwrap_or_default())
}
