//! The terminal of `dafs top`: drawn on, and its keys read.
//!
//! Invariants
//! * The terminal is restored whatever ends the program: a key, an error, a panic, SIGINT, SIGTERM. After
//!   SIGHUP there is none.
//! * Keys work while the server does not answer. A thread of its own asks it.

use super::activity::{Activity, Look};
use super::look;
use super::screen::Screen;
use crate::commands::admin::Place;
use crate::failure::Failure;
use crate::limits::{STATUS_INTERVAL, TIDY_TIME, TOP_TICK};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, TryRecvError, channel, sync_channel};
use std::time::Duration;

/// True if there is a terminal for keys and the screen that knows more than to print.
pub(super) fn is_usable() -> bool {
    let knows_more =
        std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    knows_more && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Shows the work of a server until a key or a signal ends that.
pub(super) fn run(place: &Place, interval: Duration) -> Result<(), Failure> {
    // A server that cannot be reached is an error before the screen is taken.
    let counts = observe(place.clone(), interval, look(place)?);
    restore_at_signals().map_err(|error| Failure::local("cannot handle signals", &error))?;
    let failed = |error: io::Error| Failure::local("the terminal", &error);
    let mut display = Display::enter().map_err(failed)?;
    let mut screen = Screen::new();
    loop {
        match counts.try_recv() {
            Ok(Ok(activity)) => screen.take(activity),
            Ok(Err(failure)) => screen.fail(failure.text().unwrap_or("no counts")),
            Err(TryRecvError::Empty) => {}
            // The thread has panicked, which was printed.
            Err(TryRecvError::Disconnected) => return Err(Failure::Reported),
        }
        display.draw(&mut screen).map_err(failed)?;
        if press_keys(&mut screen).map_err(failed)?.is_break() {
            return Ok(());
        }
    }
}

/// Asks a server in a thread of its own, which lasts to the end of the process.
fn observe(place: Place, interval: Duration, first: Look) -> Receiver<Result<Activity, Failure>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        // The first interval is short, so that there is something to see soon.
        let (mut before, mut pause) = (first, interval.min(STATUS_INTERVAL));
        loop {
            std::thread::sleep(pause);
            pause = interval;
            let news = look(&place).map(|after| {
                let activity = Activity::between(&before, &after);
                before = after;
                activity
            });
            if sender.send(news).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Waits for keys for a moment, and carries them out. Breaks if the program is to end.
fn press_keys(screen: &mut Screen) -> io::Result<ControlFlow<()>> {
    let stdin = io::stdin();
    let mut set = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TOP_TICK.subsec_nanos()) };
    match rustix::event::poll(&mut set, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    // `event::poll` would never return for a terminal that is gone.
    if set[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Ok(ControlFlow::Break(()));
    }
    // A change of the size is an event, too. The library is told of new input alone, and returns such a
    // change first, so one that waits there would hide the next key.
    // It may also find no key in the rest of a long paste.
    let mut patience = if set[0].revents().is_empty() { Duration::ZERO } else { TOP_TICK };
    while event::poll(patience)? {
        patience = Duration::ZERO;
        if let Event::Key(key) = event::read()?
            && screen.press(key).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The terminal while the screen is on it. The library's own end would panic if the terminal is gone
/// and standard error with it, so that never runs.
struct Display(ManuallyDrop<DefaultTerminal>);

impl Display {
    /// Takes the terminal.
    fn enter() -> io::Result<Self> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        enable_raw_mode()?;
        let terminal = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if terminal.is_err() {
            restore();
        }
        Ok(Self(ManuallyDrop::new(terminal?)))
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        let drawn = self.0.draw(|frame| {
            let area = frame.area();
            screen.draw(area, frame.buffer_mut());
        });
        drawn.map(|_| ())
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // The hook has done it before the message of the panic. Once more would move the cursor onto that.
        if !std::thread::panicking() {
            restore();
        }
    }
}

/// Gives the terminal back as it was. Errors are those of one that is gone.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Lets SIGINT and SIGTERM end the process from now on, after the terminal is restored.
fn restore_at_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        let (sender, restored) = channel();
        std::thread::spawn(move || {
            // Held to the end of the process, so that nothing is drawn any more.
            let _output = io::stdout().lock();
            restore();
            let _ = sender.send(());
            std::thread::sleep(TIDY_TIME);
        });
        // A terminal that takes no output does not keep the process.
        let _ = restored.recv_timeout(TIDY_TIME);
        std::process::exit(128 + signal);
    });
    Ok(())
}
