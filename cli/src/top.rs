//! `margo top`: a live view of a running service.
//!
//! It asks the service for a snapshot of its metrics by an RPC, again and again, and shows what has
//! changed between two of them. `view.rs` turns two snapshots into lines, and knows nothing of
//! where they go; `screen.rs` is the terminal. Without a terminal the same lines are printed one
//! block after the other, and with `--json` the snapshots themselves.

#[cfg(test)]
mod fuzzing;
mod screen;
mod view;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use margo::{Addr, Instance, Metrics, MetricsError};

use self::screen::{Key, Screen};
use crate::args::TopArgs;
use crate::failure::Failure;
use crate::output;
use crate::peer::Callers;

/// Time for an answer. One that takes longer says enough of the service.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody looks at keys and signals while it is waited for.
const GLANCE: Duration = Duration::from_millis(50);

/// Name of the thread that waits for an answer.
const ASKS: &str = "margo-top-asks";

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let client = Client::new(&args.address)?;
    let shown = show(args, &client);
    let ended = client.instance.finalize_and_wait();
    shown?;
    ended.map_err(|error| Failure::Failed(error.to_string()))
}

fn show(args: &TopArgs, client: &Client) -> Result<(), Failure> {
    // What fails at first fails for a reason that waiting does not help against.
    let mut now = client.ask().map_err(|error| explained(&error))?;
    if args.once {
        return print(args, &now, &Metrics::default());
    }
    let interval = Duration::from_secs_f64(args.interval);
    let mut screen = match std::io::stdout().is_terminal() && !args.json {
        true => Screen::full()?,
        false => Screen::plain()?,
    };
    let mut before = Metrics::default();
    let (mut trouble, mut said) = (None, None);
    let mut next = Instant::now() + interval;
    loop {
        match (screen.size(), &trouble) {
            (Some(size), _) => screen.draw(&view::page(&now, &before, trouble.as_deref(), size))?,
            (None, None) => print(args, &now, &before)?,
            // Once for as long as it is the same.
            (None, Some(_)) if said == trouble => {}
            (None, Some(trouble)) => output::note(trouble),
        }
        said.clone_from(&trouble);
        match screen.wait(next)? {
            Key::Quit => return Ok(()),
            // It has another size.
            Key::Redraw if Instant::now() < next => continue,
            Key::Redraw | Key::None => {}
        }
        next = Instant::now() + interval;
        match wait_for(&client.ask_aside()?, &mut screen)? {
            None => return Ok(()),
            Some(Ok(seen)) => {
                before = if view::is_same_run(&now, &seen) { now } else { Metrics::default() };
                (now, trouble) = (seen, None);
            }
            // It may come back.
            Some(Err(error)) => trouble = Some(format!("{}; still trying", explained(&error))),
        }
    }
}

type Answer = Result<Metrics, MetricsError>;

/// Waits for the answer of a service, which may take its time. `None`: the user wants to leave.
fn wait_for(asked: &Receiver<Answer>, screen: &mut Screen) -> Result<Option<Answer>, Failure> {
    loop {
        match asked.recv_timeout(GLANCE) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Failed("the thread that asks has panicked".to_owned()));
            }
        }
        // What has another size is drawn anew with the answer.
        if screen.wait(Instant::now())? == Key::Quit {
            return Ok(None);
        }
    }
}

fn print(args: &TopArgs, now: &Metrics, before: &Metrics) -> Result<(), Failure> {
    if args.json {
        let json = serde_json::to_string(now);
        return output::line(json.map_err(|error| Failure::new("cannot print", error))?);
    }
    output::line(view::lines(now, before).join("\n") + "\n")
}

/// An error with what to do about it.
fn explained(error: &MetricsError) -> Failure {
    let help = match error {
        MetricsError::NotEnabled { .. } => {
            "; write \"margo\": { \"metrics\": { \"remote\": true } } into its configuration"
        }
        _ => "",
    };
    // It may repeat what the service has sent.
    Failure::Failed(output::printable(&format!("{error}{help}")))
}

/// Asks one service.
struct Client {
    instance: Instance,
    peer: Addr,
}

impl Client {
    fn new(address: &str) -> Result<Self, Failure> {
        let (instance, peer) = Callers::default().reach(address)?;
        Ok(Self { instance, peer })
    }

    fn ask(&self) -> Answer {
        self.instance.metrics_of_timed(&self.peer, PATIENCE)
    }

    /// Asks on a thread of its own, for who has to look at something else meanwhile.
    fn ask_aside(&self) -> Result<Receiver<Answer>, Failure> {
        let (answers, asked) = sync_channel(1);
        let (instance, peer) = (self.instance.clone(), self.peer.clone());
        let ask = move || _ = answers.send(instance.metrics_of_timed(&peer, PATIENCE));
        let thread = std::thread::Builder::new().name(ASKS.to_owned());
        let begun = thread.spawn(ask).map_err(|error| Failure::new("cannot ask", error));
        begun.map(|_| asked)
    }
}
