//! The exchanges of the bulk cases: those of Mercury's `Testing/unit/hg/test_bulk.c`.

/// Bytes of the larger cases.
pub(crate) const BUF: usize = 1 << 18;

/// The bytes, segments and offsets of one exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) bytes: usize,
    /// Segments of the origin's memory and of the target's.
    pub(crate) cuts: (usize, usize),
    pub(crate) origin_offset: usize,
    pub(crate) target_offset: usize,
    pub(crate) len: usize,
    pub(crate) bind: bool,
}

impl Exchange {
    pub(crate) fn whole(bytes: usize, pieces: usize) -> Self {
        Self { len: bytes, ..Self::part(bytes, pieces, 0, 0, 0) }
    }

    pub(crate) fn part(
        bytes: usize,
        pieces: usize,
        len: usize,
        origin_offset: usize,
        target_offset: usize,
    ) -> Self {
        Self { bytes, cuts: (pieces, 1), origin_offset, target_offset, len, bind: false }
    }

    /// The cases, by name; without those of no segments and of a third party.
    pub(crate) fn cases() -> Vec<(&'static str, Self)> {
        let three = |names: [&'static str; 3], pieces| {
            let (quarter, eighth) = (BUF / 4, BUF / 8);
            let whole = Self::whole(BUF, pieces);
            let one = Self::part(BUF, pieces, quarter, BUF / 2 + 1, 0);
            let both = Self::part(BUF, pieces, eighth, BUF / 2 + 1, quarter);
            names.into_iter().zip([whole, one, both])
        };
        let contiguous = ["contiguous", "contiguous_at_an_offset", "contiguous_at_both_offsets"];
        let segmented = ["segmented", "segmented_at_an_offset", "segmented_at_both_offsets"];
        let over =
            ["over_segmented", "over_segmented_at_an_offset", "over_segmented_at_both_offsets"];
        let size_zero = [0, BUF / 2, BUF].map(|at| ("size_zero", Self::part(BUF, 1, 0, at, at)));
        let bind = [(BUF, 1), (100, 3)]
            .map(|(bytes, pieces)| Self { bind: true, ..Self::whole(bytes, pieces) })
            .map(|exchange| ("bind_contiguous", exchange));
        let small = [
            ("small", Self::whole(16, 2)),
            ("small_at_an_offset", Self::part(16, 2, 8, 8, 0)),
            ("small_across_segments", Self::part(16, 2, 8, 4, 2)),
        ];
        let cases = size_zero.into_iter().chain(three(contiguous, 1)).chain(bind).chain(small);
        cases.chain(three(segmented, 16)).chain(three(over, 1024)).collect()
    }

    /// Returns the exchanges of that name.
    pub(crate) fn named(name: &str) -> Vec<Self> {
        let cases = Self::cases().into_iter().filter(|(found, _)| *found == name);
        let cases: Vec<_> = cases.map(|(_, exchange)| exchange).collect();
        assert!(!cases.is_empty(), "{name}");
        cases
    }
}
