//! The scenarios. Each has a few clients on a few blocks, and one thing that the engine does beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_engine::io::Io;
use forebay_engine::{Mode, Settings};

use crate::check::{Mirrored, Scenario, quiet};
use crate::client::Client;
use crate::disk::{READ_BAD, REUSED, SEGMENT};
use crate::history::contents;
use crate::reach::{has_reached, reach};
use crate::world::World;

/// All scenarios.
pub static SCENARIOS: &[Scenario] = &[
    Scenario { name: "write against cut", act: write_against_cut, ..CALM },
    Scenario { name: "read against cut", act: read_against_cut, late: &[DESTAGE], ..CALM },
    Scenario { name: "write against write", act: write_against_write, ..CALM },
    Scenario { name: "write against rewrite", act: write_against_rewrite, ..LONE },
    Scenario {
        name: "cut against rewrite",
        act: cut_against_rewrite,
        late: &[DESTAGE, REWRITE],
        steps: &[MOVED],
        ..LONE
    },
    Scenario {
        name: "write against repair",
        act: write_against_repair,
        mirrored: Mirrored::InTheEnd,
        late: &[DESTAGE],
        steps: &[READ_BAD, REUSED],
        ..CALM
    },
    Scenario {
        name: "repair against reuse",
        act: repair_against_reuse,
        mirrored: Mirrored::InTheEnd,
        late: &[DESTAGE],
        steps: &[READ_BAD, REUSED, LATE],
        ..CALM
    },
    Scenario { name: "write against destage", act: write_against_destage, settings: busy, ..CALM },
    Scenario { name: "write against roll", act: write_against_roll, ..CALM },
    Scenario { name: "roll against destage", act: roll_against_destage, settings: busy, ..CALM },
    Scenario { name: "write past the log", act: write_past_the_log, settings: busy, ..CALM },
];

/// The name of the destage task.
const DESTAGE: &str = "forebay-destage";
/// The name of the task that gives data with one copy a second copy.
const REWRITE: &str = "forebay-rewrite";

/// Blocks are reappended to the log between the call of a truncation and its answer.
const MOVED: &str = "blocks are moved during a cut";
/// The place of a bad copy holds acknowledged blocks of another segment, and the thread that read the bad copy has not
/// repaired it yet.
const LATE: &str = "a repair is late";

const CALM: Scenario = Scenario {
    name: "",
    prepare: |_, client| Box::pin(async move { client.write(0..8, 1).await }),
    damage: |_| (),
    act: write_against_cut,
    settings: quiet,
    mirrored: Mirrored::Always,
    late: &[],
    steps: &[],
};

/// Recovery finds only one copy of the log's data, which is therefore reappended.
const LONE: Scenario = Scenario {
    prepare: |_, client| {
        Box::pin(async move {
            for first in [0, 8, 16, 24] {
                client.write(first..first + 8, 1).await;
            }
        })
    },
    damage: |world| world.disks[1].rot(|number, _| number > 0 && number % SEGMENT == 0),
    mirrored: Mirrored::Never,
    ..CALM
};

/// Returns settings under which hardly any block stays in memory.
fn small() -> Settings {
    Settings { ram: 16 << 10, ..quiet() }
}

/// Returns settings with little memory and with destaging as soon as possible.
fn busy() -> Settings {
    Settings { destage_after: Duration::ZERO, ..small() }
}

/// Runs the actions of each client on a thread of its own.
struct Clients(World, Client, Vec<Io<()>>);

impl Clients {
    fn new(world: World, client: Client) -> Self {
        Clients(world, client, Vec::new())
    }

    /// Starts a client beside those that run already.
    fn run<F: Future<Output = ()> + Send + 'static>(mut self, act: impl FnOnce(Client) -> F) -> Self {
        let running = self.0.run(act(self.1.clone()));
        self.2.push(running);
        self
    }

    /// Waits until all clients have ended.
    async fn end(self) {
        for running in self.2 {
            running.await;
        }
    }
}

/// Lets clients write and read around the end of a file, while another client truncates the file.
fn write_against_cut(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client)
        .run(|client| async move { client.cut(4).await })
        .run(|client| async move {
            client.write(3..5, 2).await;
            client.write(6..7, 3).await;
        })
        .run(|client| async move { client.write(9..10, 4).await })
        .run(|client| async move { client.read(2..10).await });
    Box::pin(clients.end())
}

/// Truncates the file in front of a block that is on its way from a device into memory. Then the file grows again.
fn read_against_cut(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client).run(|client| async move { client.read(5..6).await }).run(
        |client| async move {
            client.cut(3).await;
            client.write(9..10, 2).await;
        },
    );
    Box::pin(clients.end())
}

/// Lets three clients write overlapping blocks, while another client reads them.
fn write_against_write(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client)
        .run(|client| async move {
            client.write(3..5, 2).await;
            client.write(4..5, 3).await;
        })
        .run(|client| async move {
            client.write(4..6, 4).await;
            client.touch().await;
        })
        .run(|client| async move { client.write(3..9, 5).await })
        .run(|client| async move { client.read(3..6).await });
    Box::pin(clients.end())
}

/// Lets clients write and read blocks that the engine reappends to the log meanwhile.
fn write_against_rewrite(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client)
        .run(|client| async move {
            client.write(1..2, 2).await;
            client.write(31..32, 3).await;
        })
        .run(|client| async move { client.write(30..33, 4).await })
        .run(|client| async move { client.read(0..8).await });
    Box::pin(clients.end())
}

/// Lets a client truncate a file while the engine reappends the blocks behind its new end. None of those blocks may
/// come back.
fn cut_against_rewrite(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world.clone(), client)
        .run(|client| async move {
            let moved = || client.engine.counters().rewritten;
            world.begin(REWRITE);
            let before = moved();
            client.cut(3).await;
            if moved() > before {
                reach(MOVED);
            }
            // Blocks that wrongly came back would lie within the file.
            client.write(31..32, 2).await;
        })
        .run(|client| async move { client.read(0..8).await });
    Box::pin(clients.end())
}

/// Reads and repairs bad copies. Meanwhile their segment leaves the log, and its place is used again for blocks
/// with the numbers of the old ones.
fn write_against_repair(world: World, client: Client) -> Io<()> {
    world.disks[0].rot(|_, bytes| (0..8).any(|block| *bytes == contents(block, 1)));
    let clients = Clients::new(world.clone(), client)
        .run(|client| async move { client.read(0..8).await })
        .run(|client| async move {
            // Wait until a reader has met a bad copy: destaging repairs bad copies too.
            for _ in 0..200 {
                if client.engine.counters().repaired > 0 {
                    break;
                }
                shuttle::future::yield_now().await;
            }
            world.begin(DESTAGE);
            // The first flush gives up the place of a segment. The second flush begins a segment there.
            client.flush().await;
            client.write(8..9, 2).await;
            client.flush().await;
            client.write(0..8, 3).await;
        });
    Box::pin(clients.end())
}

/// Reads a bad copy. Before the copy is repaired, its segment leaves the log, and its place is used again for other
/// blocks.
fn repair_against_reuse(world: World, client: Client) -> Io<()> {
    world.disks[0].rot(|_, bytes| (0..8).any(|block| *bytes == contents(block, 1)));
    let has_read = Arc::new(AtomicBool::new(false));
    let reads = has_read.clone();
    let reader = |client: Client| async move {
        client.read_at_once(0..8).await;
        reads.store(true, Relaxed);
    };
    let clients = Clients::new(world.clone(), client).run(reader).run(|client| async move {
        // Wait until the reader has met a bad copy: destaging repairs bad copies too.
        for _ in 0..200 {
            if has_reached(READ_BAD) {
                break;
            }
            shuttle::future::yield_now().await;
        }
        world.begin(DESTAGE);
        // The first flush gives up the place of a segment. The second flush begins a segment there.
        client.flush().await;
        client.write(8..9, 2).await;
        client.flush().await;
        client.write(16..24, 3).await;
        if has_reached(REUSED) && !has_read.load(Relaxed) {
            reach(LATE);
        }
    });
    Box::pin(clients.end())
}

/// Lets clients overwrite and read blocks while another client destages everything.
fn write_against_destage(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client)
        .run(|client| async move {
            for value in 2..5 {
                client.write(2..5, value).await;
            }
        })
        .run(|client| async move {
            client.write(4..9, 5).await;
            client.write(4..5, 6).await;
        })
        .run(|client| async move { client.flush().await })
        .run(|client| async move {
            for _ in 0..3 {
                client.read(1..8).await;
            }
        });
    Box::pin(clients.end())
}

/// Lets records about the file wait for the next segment of the log while writes make the file longer.
fn write_against_roll(world: World, client: Client) -> Io<()> {
    let touch = |client: Client| async move {
        for _ in 0..6 {
            client.touch().await;
        }
    };
    let clients = Clients::new(world, client)
        .run(|client| async move {
            for _ in 0..4 {
                client.fill(60).await;
            }
        })
        .run(|client| async move {
            for block in 8..14 {
                client.write(block..block + 1, 2).await;
            }
        })
        .run(touch)
        .run(touch);
    Box::pin(clients.end())
}

/// Fills segments of the log while their blocks become clean, so that the last segment may lose its second copy at
/// once.
fn roll_against_destage(world: World, client: Client) -> Io<()> {
    let clients = Clients::new(world, client)
        .run(|client| async move {
            for _ in 0..6 {
                client.fill(60).await;
                client.flush().await;
            }
        })
        .run(|client| async move {
            for block in 8..14 {
                client.write(block..block + 1, 2).await;
                client.flush().await;
            }
        });
    Box::pin(clients.end())
}

/// Changes the mode: some writes bypass the log while other writes are in it.
fn write_past_the_log(world: World, client: Client) -> Io<()> {
    let engine = Arc::clone(&client.engine);
    let clients = Clients::new(world, client)
        .run(|client| async move {
            engine.set_mode(Mode::WriteThrough);
            client.write(2..4, 2).await;
            client.write(9..10, 3).await;
            engine.set_mode(Mode::WriteBack);
            client.write(3..5, 4).await;
        })
        .run(|client| async move {
            client.write(3..4, 5).await;
            client.write(10..11, 6).await;
        })
        .run(|client| async move {
            for _ in 0..2 {
                client.read(1..8).await;
            }
        });
    Box::pin(clients.end())
}
