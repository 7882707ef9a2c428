//! Text whose words are as frequent as those of a language: by Zipf's law.

use std::ops::Range;

/// Different words.
const WORDS: usize = 50_000;

/// Bytes of a block, more or less: it ends behind a word.
const BLOCK: usize = 64 << 10;

/// A generator of numbers that are the same each time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// About `bytes` of text: words of small letters, with a blank or the end of a line behind each.
pub(crate) fn zipf(bytes: usize) -> String {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let word = |rank: usize| {
        // Frequent words are short.
        let length = 2 + rank.ilog2() as usize / 2 + (numbers.next() % 4) as usize;
        let mut letters: String =
            (0..length).map(|_| char::from(b'a' + (numbers.next() % 26) as u8)).collect();
        letters.push(if numbers.next().is_multiple_of(16) { '\n' } else { ' ' });
        letters
    };
    let words: Vec<String> = (1..=WORDS).map(word).collect();
    let mut sum = 0.0;
    let ends: Vec<f64> = (1..=WORDS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        let at = (numbers.next() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        text.push_str(&words[ends.partition_point(|end| *end <= at).min(WORDS - 1)]);
    }
    text
}

/// Cuts the text into blocks that end behind words.
pub(crate) fn blocks(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut blocks = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        let mut to = (from + BLOCK).min(bytes.len());
        while to < bytes.len() && !bytes[to - 1].is_ascii_whitespace() {
            to += 1;
        }
        blocks.push(from..to);
        from = to;
    }
    blocks
}
