//! `margo kv members`.

use std::time::Duration;

use margo::daemon::Failure;
use margo_provider_kv::{KvClient, KvMember, MemberChange, Membership};

use super::progress::KeyBar;
use super::{client, failed, store};
use crate::args::KvArgs;
use crate::support::output;
use crate::support::peer::Callers;
use crate::support::table::Table;

/// The change that is wanted.
pub(super) struct WantedMembers<'a> {
    pub(super) add: &'a [String],
    pub(super) remove: &'a [String],
    pub(super) finish: bool,
    pub(super) take_back: bool,
}

pub(super) fn run(args: &KvArgs, wanted: &WantedMembers<'_>) -> Result<(), Failure> {
    let limit = Duration::from_secs_f64(args.timeout);
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let done = client(args, &mut callers, limit)
        .and_then(|kv| members(args, wanted, &kv, &mut callers, limit));
    done.and(callers.end())
}

fn members(
    args: &KvArgs,
    wanted: &WantedMembers<'_>,
    kv: &KvClient,
    callers: &mut Callers,
    limit: Duration,
) -> Result<(), Failure> {
    let mut change = MemberChange::new();
    for (addresses, is_more) in [(wanted.add, true), (wanted.remove, false)] {
        for address in addresses {
            let (instance, peer) = callers.reach(address)?;
            let target = store(args, &instance, &peer, limit)?;
            change = if is_more { change.with(target) } else { change.without(target) };
        }
    }
    if wanted.take_back {
        change = change.take_back();
    }
    let changes = !wanted.add.is_empty() || !wanted.remove.is_empty();
    if !changes && !wanted.finish && !wanted.take_back {
        return match kv.membership(limit).map_err(failed)? {
            Some(members) => print(&members),
            None => output::line("no server knows of others"),
        };
    }
    let (mut bar, mut before) = (None, 0);
    let members = kv.change_members(change, limit, |progress| {
        let shown = (progress.server.to_string(), progress.is_erasing);
        if bar.as_ref().is_none_or(|(of, _)| *of != shown) {
            let verb = if progress.is_erasing { "erasing copies of" } else { "handing over" };
            (bar, before) = (Some((shown, KeyBar::new(verb, None))), 0);
        }
        if let Some((_, bar)) = &bar {
            bar.advance(progress.keys.saturating_sub(before));
            before = progress.keys;
        }
    });
    drop(bar);
    print(&members.map_err(failed)?)
}

fn print(Membership { epoch, members }: &Membership) -> Result<(), Failure> {
    let mut table = Table::new(&["DATABASE", "address", "provider", "shards"], &[0, 1]);
    for KvMember { id, address, provider, shards, .. } in members {
        let cells = [format!("{id:016x}"), address.clone(), provider.to_string()];
        table.row(cells.into_iter().chain([shards.to_string()]));
    }
    let lines = std::iter::once(format!("epoch {epoch}")).chain(table.finish());
    output::write(lines.collect::<Vec<_>>().join("\n") + "\n")
}
