//! The queries as graphs, each from the source of the events on.

use std::collections::{BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;
use margo_stream::graph::{
    Flow, Graph, KeyedFlow, Next, Operator, Pane, Pass, ReplicaAt, Side, Stop, Window,
};
use serde::{Deserialize, Serialize};

use super::events::{Auction, Bid, Event, Person, SECOND};

/// The stage that makes the events.
pub(crate) type Events = Flow<Event, Pass>;

/// Replicas of each stage whose work is shared out.
const WORKERS: usize = 2;

/// Makes so many events: each replica every other one, in the order of their times.
pub(crate) fn events(graph: &Graph, count: u64) -> Events {
    graph.sources("events", WORKERS, move |at: ReplicaAt| {
        (at.index as u64..count).step_by(at.count).map(Event::nth)
    })
}

/// Query 0: all events as they are.
pub(crate) fn q0(events: Events) -> Flow<Event, impl Operator<Event, Out = Event>> {
    events
}

/// Query 1, currency conversion: the bids in euros.
pub(crate) fn q1(events: Events) -> Flow<Event, impl Operator<Event, Out = Bid>> {
    events.flat_map(Event::bid).map(Bid::in_euros)
}

/// Query 2, selection: auction and price of the bids for some auctions.
pub(crate) fn q2(events: Events) -> Flow<Event, impl Operator<Event, Out = (u64, u64)>> {
    events
        .flat_map(Event::bid)
        .filter(|bid| bid.auction.is_multiple_of(123))
        .map(|bid| (bid.auction, bid.price))
}

/// A person as query 3 finds them: name, city and state.
pub(crate) type Resident = (String, String, String);

/// Query 3, local items: who sells something of a category in some states, and in which auction.
pub(crate) fn q3(
    events: Events,
) -> Flow<SellerOrAuction, impl Operator<SellerOrAuction, Out = Offer>> {
    events
        .flat_map(|event| match event {
            Event::Person(person) if person.is_near() => {
                let Person { id, name, city, state, .. } = *person;
                Some((id, Side::Left((name, city, state))))
            }
            Event::Auction(auction) if auction.category == 10 => {
                Some((auction.seller, Side::Right(auction.id)))
            }
            _ => None,
        })
        .keyed()
        .farm("join", WORKERS)
        .join_sides()
        .pairs()
        .map(|(_, offer)| offer)
}

/// A seller, or something that is sold, beside the number of the seller.
pub(crate) type SellerOrAuction = (u64, Side<Resident, u64>);

/// A person, and the auction in which they sell something.
pub(crate) type Offer = (Resident, u64);

/// Query 4, average price by category: category and average of the highest bids of its auctions.
pub(crate) fn q4(events: Events) -> Flow<Prices, impl Operator<Prices, Out = (u64, u64)>> {
    closed(events)
        .map(|(lot, price)| (lot.category, price))
        .keyed()
        .fold((0, 0), |(sum, count), price| (*sum, *count) = (*sum + price, *count + 1))
        .stage("average")
        .fold((0, 0), |(sum, count), part| (*sum, *count) = (*sum + part.0, *count + part.1))
        .map_values(|(sum, count)| sum / count)
        .pairs()
}

/// The sum of some prices of a category, and how many they are.
pub(crate) type Prices = (u64, (u64, u64));

/// An auction, as far as its end is concerned.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Lot {
    pub(crate) auction: u64,
    pub(crate) seller: u64,
    pub(crate) category: u64,
    pub(crate) time: u64,
    pub(crate) expires: u64,
}

/// An auction, or a bid for one, beside the number of the auction.
pub(crate) type LotOrBid = (u64, Side<Lot, Bid>);

/// The auctions for which there were bids, each with the highest price, when they have closed.
fn closed(events: Events) -> Flow<LotOrBid, impl Operator<LotOrBid, Out = (Lot, u64)>> {
    events
        .watermarks(Event::time, 0)
        .flat_map(|event| match event {
            Event::Auction(auction) => {
                let Auction { id, seller, category, time, expires, .. } = *auction;
                Some((id, Side::Left(Lot { auction: id, seller, category, time, expires })))
            }
            Event::Bid(bid) => Some((bid.auction, Side::Right(bid))),
            Event::Person(_) => None,
        })
        .keyed()
        .farm("close", WORKERS)
        .pairs()
        // Two replicas have made them.
        .in_order(|(_, side)| match side {
            Side::Left(lot) => (lot.time, ()),
            Side::Right(bid) => (bid.time, ()),
        })
        .apply(Closing::default())
}

/// Finds the highest bid for each auction. Takes auctions and bids in the order of their times.
#[derive(Clone, Default)]
struct Closing {
    open: HashMap<u64, (Lot, Option<u64>), RandomState>,
    /// The ends and numbers of those.
    ends: BTreeSet<(u64, u64)>,
}

impl Closing {
    fn close(&mut self, time: u64, next: &mut impl Next<(Lot, u64)>) -> Result<(), Stop> {
        while let Some((end, auction)) = self.ends.first().copied()
            && end <= time
        {
            self.ends.pop_first();
            if let Some((lot, Some(price))) = self.open.remove(&auction) {
                next.item((lot, price))?;
            }
        }
        Ok(())
    }
}

impl Operator<LotOrBid> for Closing {
    type Out = (Lot, u64);

    fn item(
        &mut self,
        (auction, side): LotOrBid,
        _: &mut impl Next<Self::Out>,
    ) -> Result<(), Stop> {
        match side {
            Side::Left(lot) => {
                self.ends.insert((lot.expires, auction));
                self.open.insert(auction, (lot, None));
            }
            Side::Right(bid) => {
                if let Some((lot, price)) = self.open.get_mut(&auction)
                    && bid.time < lot.expires
                {
                    *price = (*price).max(Some(bid.price));
                }
            }
        }
        Ok(())
    }

    fn watermark(&mut self, time: u64, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.close(time, next)?;
        next.watermark(time)
    }

    fn end(&mut self, next: &mut impl Next<Self::Out>) -> Result<(), Stop> {
        self.close(u64::MAX, next)
    }
}

/// Query 5, hot items: for each window, its end, and the auction with the most bids in it, behind
/// their number.
pub(crate) fn q5(
    events: Events,
) -> Flow<InWindow<Hot>, impl Operator<InWindow<Hot>, Out = (u64, Hot)>> {
    let counts = events
        .watermarks(Event::time, 0)
        .flat_map(Event::bid)
        .map(|bid| (bid.auction, bid.time))
        .keyed()
        .farm("count", WORKERS)
        .window(Window::sliding(10 * SECOND, 2 * SECOND), |time| *time)
        .fold(0, |count, _| *count += 1)
        .pairs()
        .map(|(auction, pane)| ((), pane.map(|count| (count, auction))))
        .keyed();
    // First those of a replica.
    let hottest = greatest(greatest(counts, 2 * SECOND).stage("hottest"), 2 * SECOND);
    hottest.pairs().map(|(_, pane)| (pane.to, pane.value))
}

/// A number of bids, and the auction that they are for.
pub(crate) type Hot = (u64, u64);

/// Something of a whole window.
pub(crate) type InWindow<T> = ((), Pane<T>);

/// The greatest of all that windows with the same end have.
fn greatest<I, O, T>(
    panes: KeyedFlow<I, O>,
    step: u64,
) -> KeyedFlow<I, impl Operator<I, Out = InWindow<T>>>
where
    I: Send + 'static,
    O: Operator<I, Out = InWindow<T>>,
    T: Ord + Default + Clone + Send + 'static,
{
    panes.window(Window::tumbling(step), Pane::time).fold(T::default(), |greatest, pane| {
        if pane.value > *greatest {
            *greatest = pane.value;
        }
    })
}

/// Query 6, average price by seller: at the end of each auction, its seller, and the average
/// of the last ten of them.
pub(crate) fn q6(events: Events) -> Flow<Sale, impl Operator<Sale, Out = (u64, u64)>> {
    closed(events)
        .key_by(|(lot, _)| lot.seller)
        .farm("average", WORKERS)
        // Two replicas have closed them.
        .in_order(|(_, (lot, _))| (lot.expires, lot.auction))
        .scan(VecDeque::new(), |prices, (_, price)| {
            prices.truncate(9);
            prices.push_front(price);
            prices.iter().sum::<u64>() / prices.len() as u64
        })
        .pairs()
}

/// An auction and its price, behind the number of its seller.
pub(crate) type Sale = (u64, (Lot, u64));

/// Query 7, highest bid: for each window, its end, and the highest bid in it.
pub(crate) fn q7(
    events: Events,
) -> Flow<InWindow<Bid>, impl Operator<InWindow<Bid>, Out = (u64, Bid)>> {
    let highest = events
        .watermarks(Event::time, 0)
        .flat_map(Event::bid)
        .key_by(|_| ())
        .window(Window::tumbling(10 * SECOND), |bid| bid.time)
        .fold(Bid::default(), |highest, bid| *highest = bid.max(*highest))
        .stage("highest");
    greatest(highest, 10 * SECOND).pairs().map(|(_, pane)| (pane.to, pane.value))
}

/// Query 8, new users: for each window, its end, and those who are new in it and sell something.
pub(crate) fn q8(
    events: Events,
) -> Flow<NewOrSells, impl Operator<NewOrSells, Out = (u64, u64, String)>> {
    events
        .watermarks(Event::time, 0)
        .flat_map(|event| match event {
            Event::Person(person) => Some((person.id, (person.time, Some(person.name)))),
            Event::Auction(auction) => Some((auction.seller, (auction.time, None))),
            Event::Bid(_) => None,
        })
        .keyed()
        .farm("windows", WORKERS)
        .window(Window::tumbling(10 * SECOND), |(time, _)| *time)
        .fold((None, false), |(name, sells), (_, new)| match new {
            Some(new) => *name = Some(new),
            None => *sells = true,
        })
        .pairs()
        .flat_map(|(id, pane)| match pane.value {
            (Some(name), true) => Some((pane.to, id, name)),
            _ => None,
        })
}

/// The number of a person, and when they are new, with their name, or sell something.
pub(crate) type NewOrSells = (u64, (u64, Option<String>));
