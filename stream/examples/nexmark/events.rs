//! The events of an auction site, after the generator of the Nexmark benchmark: of each 50, one is
//! a person, three are auctions and 46 are bids; half of the bids go to few auctions, and most
//! auctions are of few persons. 10,000 happen in a second. Event `n` is always the same.

use serde::{Deserialize, Serialize};

/// Someone who sells or bids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Person {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) email: String,
    pub(crate) city: String,
    pub(crate) state: String,
    /// Microseconds since the first event.
    pub(crate) time: u64,
}

/// Something that is sold to the highest bidder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Auction {
    pub(crate) id: u64,
    pub(crate) item: String,
    pub(crate) seller: u64,
    pub(crate) category: u64,
    /// Price at which it begins, in cents.
    pub(crate) initial: u64,
    /// Price below which it is not sold.
    pub(crate) reserve: u64,
    pub(crate) time: u64,
    /// Time at which it closes: bids before it count.
    pub(crate) expires: u64,
}

/// An offer. The greatest has the highest price, and of those the latest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Bid {
    /// In cents.
    pub(crate) price: u64,
    pub(crate) time: u64,
    pub(crate) auction: u64,
    pub(crate) bidder: u64,
}

/// Something that happens on the site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Event {
    Person(Box<Person>),
    Auction(Box<Auction>),
    Bid(Bid),
}

/// A second of the times of the events.
pub(crate) const SECOND: u64 = 1_000_000;

const PERSONS: u64 = 1;
const AUCTIONS: u64 = 3;
const ALL: u64 = 50;

/// Time from event to event: no two are at the same.
const STEP: u64 = SECOND / 10_000;

const FIRST_PERSON: u64 = 1000;
const FIRST_AUCTION: u64 = 1000;
const FIRST_CATEGORY: u64 = 10;

/// Persons who do something, and auctions that are bid for: the newest.
const ACTIVE_PERSONS: u64 = 1000;
const OPEN_AUCTIONS: u64 = 100;

/// Ids that are used although their person or auction comes later.
const AHEAD: u64 = 10;

/// Every so many-th person and auction is a hot one.
const HOT_STEP: u64 = 100;

const CITIES: [(&str, &str); 10] = [
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("San Francisco", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Bend", "OR"),
    ("Redmond", "WA"),
    ("Seattle", "WA"),
    ("Kent", "WA"),
    ("Cheyenne", "WY"),
];
const FIRST_NAMES: [&str; 8] = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie"];
const LAST_NAMES: [&str; 7] =
    ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith"];

/// Random numbers that belong to one event (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Cents: as many prices have three digits as four, or eight.
    fn price(&mut self) -> u64 {
        let share = self.below(1 << 53) as f64 / (1u64 << 53) as f64;
        (10f64.powf(share * 6.0) * 100.0).round() as u64
    }

    /// One of the active persons before the event.
    fn person(&mut self, persons: u64) -> u64 {
        let active = persons.min(ACTIVE_PERSONS);
        FIRST_PERSON + persons - active + self.below(active + AHEAD)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

impl Person {
    /// Returns whether they live in one of the states that query 3 asks for.
    pub(crate) fn is_near(&self) -> bool {
        ["OR", "ID", "CA"].contains(&self.state.as_str())
    }
}

impl Bid {
    /// The bid with its price in euros.
    pub(crate) fn in_euros(self) -> Self {
        Self { price: self.price * 908 / 1000, ..self }
    }
}

impl Event {
    /// Makes event `n`.
    pub(crate) fn nth(n: u64) -> Self {
        let mut random = Random(n.wrapping_mul(0xD129_0E3A_9D3C_7A95));
        let (round, place) = (n / ALL, n % ALL);
        let time = n * STEP;
        // How many there were before.
        let persons = (round * PERSONS + place.min(PERSONS)).max(1);
        let auctions = (round * AUCTIONS + place.saturating_sub(PERSONS).min(AUCTIONS)).max(1);
        if place < PERSONS {
            let id = FIRST_PERSON + round;
            let (first, last) = (random.one_of(&FIRST_NAMES), random.one_of(&LAST_NAMES));
            let (city, state) = random.one_of(&CITIES);
            Self::Person(Box::new(Person {
                id,
                name: format!("{first} {last}"),
                email: format!("{first}.{last}.{id}@example.com"),
                city: city.to_owned(),
                state: state.to_owned(),
                time,
            }))
        } else if place < PERSONS + AUCTIONS {
            let id = FIRST_AUCTION + round * AUCTIONS + place - PERSONS;
            let seller = match random.below(4) {
                0 => random.person(persons),
                _ => FIRST_PERSON + (persons - 1) / HOT_STEP * HOT_STEP,
            };
            let initial = random.price();
            // As long as it takes until others are bid for, on average.
            let length = 2 * OPEN_AUCTIONS * ALL / AUCTIONS * STEP;
            Self::Auction(Box::new(Auction {
                id,
                item: format!("item {id}"),
                seller,
                category: FIRST_CATEGORY + random.below(5),
                initial,
                reserve: initial + random.price(),
                time,
                expires: time + 1 + random.below(length),
            }))
        } else {
            let open = auctions.min(OPEN_AUCTIONS);
            let auction = match random.below(2) {
                0 => FIRST_AUCTION + auctions - open + random.below(open + AHEAD),
                _ => FIRST_AUCTION + (auctions - 1) / HOT_STEP * HOT_STEP,
            };
            let bidder = match random.below(4) {
                0 => random.person(persons),
                _ => FIRST_PERSON + (persons - 1) / HOT_STEP * HOT_STEP + 1,
            };
            Self::Bid(Bid { price: random.price(), time, auction, bidder })
        }
    }

    /// Returns when it happens, in microseconds since the first.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::Person(person) => person.time,
            Self::Auction(auction) => auction.time,
            Self::Bid(bid) => bid.time,
        }
    }

    /// Returns the bid, if it is one.
    pub(crate) fn bid(self) -> Option<Bid> {
        match self {
            Self::Bid(bid) => Some(bid),
            Self::Person(_) | Self::Auction(_) => None,
        }
    }
}
