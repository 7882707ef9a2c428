//! Turns of the network beside those of the program.

/// Lets others run, once for each batch: a ULT that has always something to send, or always finds a
/// batch, would else keep the network of its own xstream from its work, and both sides of a stream
/// would work by turns. An OS thread keeps nobody from work.
#[inline]
pub(crate) fn let_others_run() {
    if ult::is_ult() {
        ult::yield_now();
    }
}
