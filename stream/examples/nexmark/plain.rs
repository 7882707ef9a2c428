//! The queries as loops over the events, in the order of their times: what the graphs are checked
//! by, and measured beside.

use std::collections::{BTreeMap, HashMap, VecDeque};

use foldhash::fast::RandomState;

use super::events::{Auction, Bid, Event, Person, SECOND};
use super::queries::{Hot, Offer};

type Map<K, V> = HashMap<K, V, RandomState>;

pub(crate) fn q0(events: impl Iterator<Item = Event>) -> impl Iterator<Item = Event> {
    events
}

pub(crate) fn q1(events: impl Iterator<Item = Event>) -> impl Iterator<Item = Bid> {
    events.filter_map(Event::bid).map(Bid::in_euros)
}

pub(crate) fn q2(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, u64)> {
    let bids = events.filter_map(Event::bid);
    bids.filter(|bid| bid.auction % 123 == 0).map(|bid| (bid.auction, bid.price))
}

pub(crate) fn q3(events: impl Iterator<Item = Event>) -> impl Iterator<Item = Offer> {
    let mut residents = Map::default();
    let mut auctions = Map::<u64, Vec<u64>>::default();
    for event in events {
        match event {
            Event::Person(person) if person.is_near() => {
                let Person { id, name, city, state, .. } = *person;
                residents.insert(id, (name, city, state));
            }
            Event::Auction(auction) if auction.category == 10 => {
                auctions.entry(auction.seller).or_default().push(auction.id);
            }
            _ => {}
        }
    }
    residents.into_iter().flat_map(move |(id, resident)| {
        let auctions = auctions.get(&id).cloned().unwrap_or_default();
        auctions.into_iter().map(move |auction| (resident.clone(), auction))
    })
}

/// The auctions for which there were bids, in the order of their ends, with the highest prices.
fn closed(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (Box<Auction>, u64)> {
    let mut auctions = Map::<u64, (Box<Auction>, u64)>::default();
    for event in events {
        match event {
            Event::Auction(auction) => drop(auctions.insert(auction.id, (auction, 0))),
            Event::Bid(bid) => match auctions.get_mut(&bid.auction) {
                Some((auction, price)) if bid.time < auction.expires => {
                    *price = bid.price.max(*price);
                }
                _ => {}
            },
            Event::Person(_) => {}
        }
    }
    let mut closed: Vec<_> = auctions.into_values().filter(|(_, price)| *price > 0).collect();
    closed.sort_by_key(|(auction, _)| (auction.expires, auction.id));
    closed.into_iter()
}

pub(crate) fn q4(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, u64)> {
    let mut prices = BTreeMap::<u64, Vec<u64>>::new();
    for (auction, price) in closed(events) {
        prices.entry(auction.category).or_default().push(price);
    }
    prices.into_iter().map(|(category, prices)| (category, average(&prices)))
}

fn average<'a>(prices: impl IntoIterator<Item = &'a u64, IntoIter: ExactSizeIterator>) -> u64 {
    let prices = prices.into_iter();
    let count = prices.len() as u64;
    prices.sum::<u64>() / count
}

pub(crate) fn q5(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, Hot)> {
    let mut windows = BTreeMap::<u64, Map<u64, u64>>::new();
    for bid in events.filter_map(Event::bid) {
        let mut begin = bid.time / (2 * SECOND) * (2 * SECOND);
        while bid.time < begin + 10 * SECOND {
            let counts = windows.entry(begin + 10 * SECOND).or_default();
            *counts.entry(bid.auction).or_default() += 1;
            let Some(before) = begin.checked_sub(2 * SECOND) else { break };
            begin = before;
        }
    }
    windows.into_iter().map(|(end, counts)| {
        let hottest = counts.into_iter().map(|(auction, count)| (count, auction)).max();
        (end, hottest.unwrap_or_default())
    })
}

pub(crate) fn q6(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, u64)> {
    let mut last = Map::<u64, VecDeque<u64>>::default();
    closed(events).map(move |(auction, price)| {
        let prices = last.entry(auction.seller).or_default();
        prices.push_back(price);
        if prices.len() > 10 {
            prices.pop_front();
        }
        (auction.seller, average(&*prices))
    })
}

pub(crate) fn q7(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, Bid)> {
    let mut windows = BTreeMap::<u64, Bid>::new();
    for bid in events.filter_map(Event::bid) {
        let highest = windows.entry(bid.time / (10 * SECOND)).or_default();
        *highest = bid.max(*highest);
    }
    windows.into_iter().map(|(window, bid)| ((window + 1) * 10 * SECOND, bid))
}

pub(crate) fn q8(events: impl Iterator<Item = Event>) -> impl Iterator<Item = (u64, u64, String)> {
    let mut windows = Map::<(u64, u64), (Option<String>, bool)>::default();
    let end = |time| (time / (10 * SECOND) + 1) * 10 * SECOND;
    for event in events {
        match event {
            Event::Person(person) => {
                windows.entry((end(person.time), person.id)).or_default().0 = Some(person.name);
            }
            Event::Auction(auction) => {
                windows.entry((end(auction.time), auction.seller)).or_default().1 = true;
            }
            Event::Bid(_) => {}
        }
    }
    let sellers = windows.into_iter().filter(|(_, (_, sells))| *sells);
    sellers.filter_map(|((end, id), (name, _))| Some((end, id, name?)))
}
