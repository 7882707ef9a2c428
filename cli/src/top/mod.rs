//! `margo top`: a live view of a running service.
//!
//! It asks each service for a snapshot of its metrics by an RPC, again and again, and shows what
//! has changed between two of them. `view.rs` turns two snapshots into lines, `window.rs` those
//! into what fits on a screen, and both know nothing of where they go; `screen.rs` is the terminal.
//! Without a terminal the same lines are printed one block after the other, and with `--json` the
//! snapshots themselves.

#[cfg(test)]
mod fuzzing;
mod screen;
mod view;
mod window;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use margo::{Addr, Instance, Metrics, errors::MetricsError};

use self::screen::{Key, Screen};
use self::window::{Scroll, Window};
use crate::args::TopArgs;
use crate::support::output;
use crate::support::peer::Callers;
use margo::daemon::Failure;

/// Time for an answer. One that takes longer says enough of the service.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody looks at keys and signals while it is waited for.
const GLANCE: Duration = Duration::from_millis(50);

/// Name of the thread that waits for an answer.
const ASKS: &str = "margo-top-asks";

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let mut callers = Callers::with(args.client.config.as_deref())?;
    let clients = args.addresses.iter().map(|address| Client::new(&mut callers, address));
    let shown = clients.collect::<Result<Vec<_>, _>>().and_then(|clients| show(args, clients));
    let ended = callers.end();
    shown.and(ended)
}

/// A service, and what is known of it.
struct Watched {
    client: Client,
    now: Metrics,
    before: Metrics,
    trouble: Option<String>,
}

impl Watched {
    fn new(client: Client) -> Result<Self, Failure> {
        // What fails at first fails for a reason that waiting does not help against.
        let now = client.ask().map_err(|error| explained(&error))?;
        Ok(Self { client, now, before: Metrics::default(), trouble: None })
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Ok(seen) => {
                let now = std::mem::replace(&mut self.now, seen);
                let goes_on = view::is_same_run(&now, &self.now);
                self.before = if goes_on { now } else { Metrics::default() };
                self.trouble = None;
            }
            // It may come back.
            Err(error) => self.trouble = Some(format!("{}; still trying", explained(&error))),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = view::lines(&self.now, &self.before);
        if let Some(trouble) = &self.trouble {
            lines[0].clone_from(trouble);
        }
        lines
    }
}

/// All services, one below the other.
fn lines(all: &[Watched]) -> Vec<String> {
    all.iter().map(Watched::lines).collect::<Vec<_>>().join(&String::new())
}

fn show(args: &TopArgs, clients: Vec<Client>) -> Result<(), Failure> {
    let mut all = clients.into_iter().map(Watched::new).collect::<Result<Vec<_>, _>>()?;
    if args.once {
        return all.iter().try_for_each(|one| print(args, &one.now, &Metrics::default()));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let mut screen = match std::io::stdout().is_terminal() && !args.json {
        true => Screen::full()?,
        false => Screen::plain()?,
    };
    let mut window = Window::default();
    let mut said = vec![None; all.len()];
    let mut next = Instant::now() + interval;
    loop {
        if screen.size().is_some() {
            draw(&screen, &mut window, &all)?;
        } else {
            for (one, said) in all.iter().zip(&mut said) {
                match &one.trouble {
                    None => print(args, &one.now, &one.before)?,
                    // Once for as long as it is the same.
                    Some(_) if *said == one.trouble => {}
                    Some(trouble) => output::note(trouble),
                }
                said.clone_from(&one.trouble);
            }
        }
        let mut key = screen.wait(next)?;
        // What was answered is shown in another way.
        while matches!(key, Key::Redraw | Key::Scroll(_)) && Instant::now() < next {
            redraw(key, &screen, &mut window, &all)?;
            key = screen.wait(next)?;
        }
        match key {
            Key::Quit => return Ok(()),
            Key::Scroll(to) => scroll(to, &screen, &mut window),
            Key::Redraw | Key::None => {}
        }
        next = Instant::now() + interval;
        let asked = all.iter().map(|one| one.client.ask_aside()).collect::<Result<Vec<_>, _>>()?;
        for (at, asked) in asked.iter().enumerate() {
            let mut key = |key, screen: &Screen| redraw(key, screen, &mut window, &all);
            match wait_for(asked, &mut screen, &mut key)? {
                None => return Ok(()),
                Some(answer) => all[at].take(answer),
            }
        }
    }
}

fn draw(screen: &Screen, window: &mut Window, all: &[Watched]) -> Result<(), Failure> {
    match screen.size() {
        Some(size) => screen.draw(&window.page(&lines(all), size)),
        None => Ok(()),
    }
}

fn scroll(to: Scroll, screen: &Screen, window: &mut Window) {
    if let Some((_, rows)) = screen.size() {
        window.scroll(to, rows);
    }
}

fn redraw(key: Key, screen: &Screen, window: &mut Window, all: &[Watched]) -> Result<(), Failure> {
    if let Key::Scroll(to) = key {
        scroll(to, screen, window);
    }
    draw(screen, window, all)
}

type Answer = Result<Metrics, MetricsError>;

/// Waits for the answer of a service, which may take its time; meanwhile `on_key` hears of keys.
/// `None`: the user wants to leave.
fn wait_for(
    asked: &Receiver<Answer>,
    screen: &mut Screen,
    on_key: &mut dyn FnMut(Key, &Screen) -> Result<(), Failure>,
) -> Result<Option<Answer>, Failure> {
    loop {
        match asked.recv_timeout(GLANCE) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Failed("the thread that asks has panicked".to_owned()));
            }
        }
        match screen.wait(Instant::now())? {
            Key::Quit => return Ok(None),
            Key::None => {}
            key => on_key(key, screen)?,
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
    fn new(callers: &mut Callers, address: &str) -> Result<Self, Failure> {
        let (instance, peer) = callers.reach(address)?;
        Ok(Self { instance, peer })
    }

    fn ask(&self) -> Answer {
        self.instance.network().metrics_of_timed(&self.peer, PATIENCE)
    }

    /// Asks on a thread of its own, for a caller that has to watch something else meanwhile.
    fn ask_aside(&self) -> Result<Receiver<Answer>, Failure> {
        let (answers, asked) = sync_channel(1);
        let (instance, peer) = (self.instance.clone(), self.peer.clone());
        let ask = move || _ = answers.send(instance.network().metrics_of_timed(&peer, PATIENCE));
        let thread = std::thread::Builder::new().name(ASKS.to_owned());
        let begun = thread.spawn(ask).map_err(|error| Failure::new("cannot ask", error));
        begun.map(|_| asked)
    }
}
