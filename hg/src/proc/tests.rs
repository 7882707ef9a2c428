//! Bytes against the C formats, round trips, and malformed bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Choice {
    Nothing,
    One(u16),
    Two(i64, bool),
    Named { text: String, more: Option<Box<Choice>> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct All {
    numbers: (u8, i16, u32, i64, u128),
    floats: (f32, f64),
    letter: char,
    text: String,
    list: Vec<Choice>,
    map: BTreeMap<String, Vec<u8>>,
    unit: (),
}

fn choice() -> impl Strategy<Value = Choice> {
    let leaf = prop_oneof![
        Just(Choice::Nothing),
        any::<u16>().prop_map(Choice::One),
        any::<(i64, bool)>().prop_map(|(a, b)| Choice::Two(a, b)),
    ];
    leaf.prop_recursive(4, 8, 2, |inner| {
        (any::<String>(), proptest::option::of(inner.prop_map(Box::new)))
            .prop_map(|(text, more)| Choice::Named { text, more })
    })
}

fn all() -> impl Strategy<Value = All> {
    (
        any::<(u8, i16, u32, i64, u128)>(),
        (-1e30f32..1e30, -1e300f64..1e300),
        any::<char>(),
        any::<String>(),
        proptest::collection::vec(choice(), 0..5),
        proptest::collection::btree_map(any::<String>(), any::<Vec<u8>>(), 0..4),
    )
        .prop_map(|(numbers, floats, letter, text, list, map)| All {
            numbers,
            floats,
            letter,
            text,
            list,
            map,
            unit: (),
        })
}

#[test]
fn strings_are_mercurys() {
    assert_eq!(to_vec("hello").unwrap(), b"\x06\0\0\0\0\0\0\0hello\0\0\0");
    assert_eq!(to_vec(&ConstStr::from("hello")).unwrap(), b"\x06\0\0\0\0\0\0\0hello\0\x01\0");
    for bytes in [&b"\x06\0\0\0\0\0\0\0hello\0\0\0"[..], b"\x06\0\0\0\0\0\0\0hello\0\x01\0"] {
        assert_eq!(from_slice::<&str>(bytes).unwrap(), "hello");
        assert_eq!(&*from_slice::<ConstStr>(bytes).unwrap(), "hello");
    }
    assert_eq!(from_slice::<String>(&[0; 8]).unwrap(), "", "C's NULL");
}

#[test]
fn const_applies_to_its_own_string_only() {
    let bytes = to_vec(&(ConstStr::from("a"), "b")).unwrap();
    assert_eq!(bytes, b"\x02\0\0\0\0\0\0\0a\0\x01\0\x02\0\0\0\0\0\0\0b\0\0\0");
}

#[test]
fn counts_are_compared_with_the_bytes_left() {
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    bytes.extend([0; 16]);
    from_slice::<Vec<u64>>(&bytes).unwrap_err();
    from_slice::<Vec<()>>(&bytes).unwrap_err();
    from_slice::<String>(&bytes).unwrap_err();
    from_slice::<BTreeMap<u8, u8>>(&bytes).unwrap_err();
}

#[test]
fn nesting_has_a_bound() {
    let mut deep = Choice::Nothing;
    for _ in 0..DEPTH_MAX {
        deep = Choice::Named { text: String::new(), more: Some(Box::new(deep)) };
    }
    assert_eq!(to_vec(&deep), Err(ProcError::TooDeep { max: DEPTH_MAX }));
    #[derive(Debug, Deserialize)]
    struct Chain {
        #[serde(rename = "next")]
        _next: Option<Box<Chain>>,
    }
    let error = from_slice::<Chain>(&[1; 10_000]).unwrap_err();
    assert_eq!(error, ProcError::TooDeep { max: DEPTH_MAX });
}

#[test]
fn errors_say_where() {
    assert_eq!(from_slice::<(u32, u32)>(&[0; 6]), Err(ProcError::End { at: 4, need: 4, left: 2 }));
    assert_eq!(from_slice::<u8>(&[0; 3]), Err(ProcError::Trailing { at: 1, left: 2 }));
    assert!(matches!(from_slice::<bool>(&[2]), Err(ProcError::Invalid { at: 0, .. })));
    let unknown_variant = from_slice::<(u8, Choice)>(&[1, 9, 0, 0, 0]).unwrap_err();
    assert!(matches!(unknown_variant, ProcError::Invalid { at: 5, .. }), "{unknown_variant}");
}

fn writer(room: usize, bytes_max: usize) -> Writer {
    let limits = WriterLimits { bytes_max, ..WriterLimits::default() };
    Writer::new(MsgBuf::with_capacity(4 + room), 4, 4 + room, limits)
}

#[test]
fn a_full_message_overflows_as_a_whole() {
    let mut writer = writer(10, 100);
    writer.put(&[1; 8]).unwrap();
    writer.put(&[2; 8]).unwrap();
    writer.put(&[3; 1]).unwrap();
    assert_eq!(writer.len(), 17);
    let Written::Overflow(buf, bytes) = writer.finish() else { panic!("fits?") };
    assert!(buf.is_empty());
    assert_eq!(bytes, [[1; 8].as_slice(), &[2; 8], &[3]].concat());
}

#[test]
fn what_fits_stays_in_the_message_to_the_last_byte() {
    let mut writer = writer(8, 100);
    writer.put(&[1; 8]).unwrap();
    let Written::Fits(buf) = writer.finish() else { panic!("overflowed") };
    assert_eq!(buf.as_slice(), [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn an_encoding_has_a_limit() {
    let mut writer = writer(8, 20);
    writer.put(&[1; 20]).unwrap();
    assert_eq!(writer.put(&[1]), Err(ProcError::TooLong { max: 20 }));
    assert_eq!(writer.len(), 20);
}

/// An iterator that does not know its length.
struct Streamed(u32);

impl Serialize for Streamed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.0).filter(|n| n % 2 == 0))
    }
}

#[test]
fn a_length_that_is_not_known_in_advance_is_filled_in() {
    for room in [0, 8, 1000] {
        let mut writer = writer(room, 1000);
        to_writer(&mut writer, &(7u8, Streamed(10))).unwrap();
        let bytes = match writer.finish() {
            Written::Fits(buf) => buf.as_slice()[4..].to_vec(),
            Written::Overflow(_, bytes) => bytes,
        };
        let (seven, evens) = from_slice::<(u8, Vec<u32>)>(&bytes).unwrap();
        assert_eq!((seven, evens), (7, vec![0, 2, 4, 6, 8]));
    }
}

#[test]
fn elements_without_bytes_are_bounded_on_both_sides() {
    let most = vec![(); EMPTY_ELEMENTS_MAX as usize];
    assert_eq!(from_slice::<Vec<()>>(&to_vec(&most).unwrap()).unwrap().len(), most.len());
    to_vec(&(&most, vec![()])).unwrap_err();
    let mut bytes = to_vec(&most).unwrap();
    bytes.extend(1u64.to_le_bytes());
    assert!(matches!(from_slice::<(Vec<()>, Vec<()>)>(&bytes), Err(ProcError::Count { .. })));
    // Not each list by itself, either: here every count is plausible.
    let mut bytes = 1000u64.to_le_bytes().to_vec();
    (0..1000).for_each(|_| bytes.extend(1000u64.to_le_bytes()));
    assert!(matches!(from_slice::<Vec<Vec<()>>>(&bytes), Err(ProcError::Count { .. })));
}

#[test]
fn text_and_bytes_are_borrowed() {
    let bytes = to_vec(&("abc", serde_bytes(b"xyz"))).unwrap();
    let (text, raw) = from_slice::<(ConstStr<&str>, &[u8])>(&bytes).unwrap();
    assert_eq!((&*text, raw), ("abc", &b"xyz"[..]));
    assert!(bytes.as_ptr_range().contains(&raw.as_ptr()));
}

#[test]
fn raw_bytes_have_no_length_and_take_the_rest() {
    let bytes = to_vec(&(1u8, Raw(b"abc"))).unwrap();
    assert_eq!(bytes, b"\x01abc");
    let (one, raw) = from_slice::<(u8, Raw<&[u8]>)>(&bytes).unwrap();
    assert_eq!((one, &*raw), (1, &b"abc"[..]));
    assert!(bytes.as_ptr_range().contains(&raw.as_ptr()));
    assert_eq!(from_slice::<Raw>(b"").unwrap(), Raw(vec![]));
    from_slice::<(Raw, u8)>(&bytes).unwrap_err();
}

#[test]
fn bytes_are_what_a_sequence_of_bytes_is() {
    let bytes = to_vec(&Bytes(b"xyz")).unwrap();
    assert_eq!(bytes, to_vec(&vec![b'x', b'y', b'z']).unwrap());
    assert_eq!(from_slice::<Bytes>(&bytes).unwrap(), Bytes(b"xyz".to_vec()));
    assert_eq!(from_slice::<Vec<u8>>(&bytes).unwrap(), b"xyz");
    let borrowed = from_slice::<Bytes<&[u8]>>(&bytes).unwrap();
    assert!(bytes.as_ptr_range().contains(&borrowed.as_ptr()));
    // Also as a member whose reserved name must not stick.
    let both = to_vec(&(Raw(b"r"), Bytes(b"b"))).unwrap();
    assert_eq!(both, b"r\x01\0\0\0\0\0\0\0b");
}

/// Encodes within limits.
fn within<T: Serialize>(value: &T, proc: ProcLimits) -> Result<Vec<u8>, ProcError> {
    let limits = WriterLimits { proc, ..WriterLimits::default() };
    let mut writer = Writer::new(MsgBuf::with_capacity(0), 0, 0, limits);
    to_writer(&mut writer, value)?;
    Ok(match writer.finish() {
        Written::Fits(_) => Vec::new(),
        Written::Overflow(_, bytes) => bytes,
    })
}

#[test]
fn lengths_have_a_bound_that_can_be_set() {
    let limits = ProcLimits { len_max: 4, ..ProcLimits::default() };
    let long = ProcError::TooMany { len: 5, max: 4 };
    assert_eq!(within(&"abcd", limits), Err(long.clone()), "its NUL counts");
    assert_eq!(within(&Bytes(b"abcde"), limits), Err(long.clone()));
    assert_eq!(within(&vec![1u32; 5], limits), Err(long.clone()));
    assert_eq!(within(&BTreeMap::from([1, 2, 3, 4, 5].map(|n| (n, n))), limits), Err(long.clone()));
    assert_eq!(within(&Streamed(10), limits), Err(long.clone()));
    within(&("abc", Bytes(b"abcd"), vec![1u32; 4]), limits).unwrap();
    let bytes = to_vec("abcd").unwrap();
    assert_eq!(from_slice_within::<&str>(&bytes, limits), Err(long.clone()));
    let bytes = to_vec(&vec![1u32; 5]).unwrap();
    assert_eq!(from_slice_within::<Vec<u32>>(&bytes, limits), Err(long.clone()));
    assert_eq!(from_slice_within::<Bytes>(&bytes, limits), Err(long));
}

#[test]
fn fewer_bytes_than_the_message_has_room_for_can_be_the_limit() {
    let mut writer = writer(100, 10);
    writer.put(&[1; 10]).unwrap();
    assert_eq!(writer.put(&[1]), Err(ProcError::TooLong { max: 10 }));
    let Written::Fits(buf) = writer.finish() else { panic!("overflowed") };
    assert_eq!(buf.len(), 14);
}

/// A slice as bytes, not as a sequence of numbers.
fn serde_bytes(bytes: &[u8]) -> impl Serialize + '_ {
    struct Bytes<'a>(&'a [u8]);
    impl Serialize for Bytes<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
    Bytes(bytes)
}

#[test]
fn no_limit_of_empty_elements_is_a_limit_too() {
    let limits = ProcLimits { empty_elements_max: u64::MAX, ..ProcLimits::default() };
    let bytes = to_vec(&vec![(); 3]).unwrap();
    assert_eq!(from_slice_within::<Vec<()>>(&bytes, limits).map(|all| all.len()), Ok(3));
}

#[test]
fn what_may_follow_can_be_left() {
    let bytes = to_vec(&(1u32, 2u32)).unwrap();
    assert_eq!(from_prefix::<u32>(&bytes), Ok((1, &[2, 0, 0, 0][..])));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(value in all()) {
        let bytes = to_vec(&value).unwrap();
        prop_assert_eq!(from_slice::<All>(&bytes).unwrap(), value);
    }

    #[test]
    fn what_may_be_written_may_be_read(value in all(), depth_max in 0usize..12) {
        let limits = ProcLimits { depth_max, ..ProcLimits::default() };
        let decoded = from_slice_within::<All>(&to_vec(&value).unwrap(), limits);
        match within(&value, limits) {
            Ok(_) => prop_assert_eq!(decoded, Ok(value)),
            Err(error) => prop_assert_eq!(decoded, Err(error)),
        }
    }

    #[test]
    fn a_truncated_encoding_is_an_error(value in all(), cut in any::<prop::sample::Index>()) {
        let bytes = to_vec(&value).unwrap();
        let cut = cut.index(bytes.len());
        prop_assert!(from_slice::<All>(&bytes[..cut]).is_err());
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = from_slice::<All>(&bytes);
        let _ = from_slice::<Vec<Choice>>(&bytes);
        let _ = from_slice::<crate::Bulk>(&bytes);
    }
}
