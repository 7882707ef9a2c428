//! Numbers whose encoding is what lies in memory.

use std::any::TypeId;

/// Returns the encodings of `items` one behind the other, as [`to_writer`](super::to_writer) makes
/// them, where that is the memory of `items`: they are integers or floats of up to 64 bits, and the
/// machine is little-endian. Otherwise returns `None`.
///
/// ```
/// assert_eq!(hg::proc::bytes_of_numbers(&[1_u16, 2]), Some(&[1, 0, 2, 0][..]));
/// assert_eq!(hg::proc::bytes_of_numbers(&[(1_u16, 2_u32)]), None);
/// ```
#[inline]
pub fn bytes_of_numbers<T: 'static>(items: &[T]) -> Option<&[u8]> {
    macro_rules! is_any {
        ($($number:ty)+) => { $(TypeId::of::<T>() == TypeId::of::<$number>())||+ };
    }
    let is_number = is_any!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);
    if !is_number || cfg!(target_endian = "big") {
        return None;
    }
    // SAFETY: the bytes of `items` for as long as these are borrowed. All of them are initialised,
    // since a number has no padding; any address is aligned for bytes.
    Some(unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_what_is_encoded<T: serde::Serialize + 'static>(items: &[T]) {
        let each: Vec<u8> =
            items.iter().flat_map(|item| crate::proc::to_vec(item).expect("a number")).collect();
        let at_once = bytes_of_numbers(items);
        assert_eq!(at_once, cfg!(target_endian = "little").then_some(&each[..]));
    }

    #[test]
    fn the_memory_of_numbers_is_their_encoding() {
        is_what_is_encoded(&[0_u8, 7, u8::MAX]);
        is_what_is_encoded(&[1_u16, u16::MAX]);
        is_what_is_encoded(&[1_u32, u32::MAX]);
        is_what_is_encoded(&[1_u64, u64::MAX, 1 << 40]);
        is_what_is_encoded(&[-1_i8, i8::MIN]);
        is_what_is_encoded(&[-2_i16, i16::MIN]);
        is_what_is_encoded(&[-2_i32, i32::MIN]);
        is_what_is_encoded(&[-2_i64, i64::MIN]);
        is_what_is_encoded(&[1.5_f32, -0.0, f32::NAN]);
        is_what_is_encoded(&[1.5_f64, f64::NEG_INFINITY]);
        is_what_is_encoded::<u64>(&[]);
    }

    #[test]
    fn what_is_no_number_of_memory_has_none() {
        assert_eq!(bytes_of_numbers(&[true]), None);
        assert_eq!(bytes_of_numbers(&['a']), None);
        assert_eq!(bytes_of_numbers(&[[1_u8, 2]]), None);
        assert_eq!(bytes_of_numbers(&["a"]), None);
    }
}
