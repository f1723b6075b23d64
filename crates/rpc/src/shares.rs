//! Shares of a loop's time for the connected addresses: deficit round robin (Shreedhar and Varghese, "Efficient Fair
//! Queueing Using Deficit Round-Robin", 1996). A client that asks for megabytes on many connections delays a small
//! request of another client by one of its requests, not by all of them.

use std::collections::HashMap;
use std::net::IpAddr;

/// The work of one round for an address, in bytes: about 30 us.
pub(crate) const QUANTUM: usize = 128 << 10;
/// The work of one round for an address while several are active, in bytes.
const SHORT: usize = 16 << 10;
/// The number of rounds without a turn of another address after which an address counts as alone.
const ALONE: u32 = 1024;
/// The least cost of a request, in bytes.
pub(crate) const REQUEST: usize = 1 << 10;
/// The cost of a turn of a connection, in bytes, whatever its result: a system call.
pub(crate) const TURN: usize = 4 << 10;
/// The cost of a new connection, in bytes.
pub(crate) const OPENING: usize = 16 << 10;
/// The cost of the end of a connection, in bytes: the kernel removes the connection.
pub(crate) const CLOSING: usize = 32 << 10;

/// The work done for each address and not yet paid for by rounds.
pub(crate) struct Shares {
    debts: HashMap<IpAddr, usize, foldhash::fast::RandomState>,
    /// The address of the last turn.
    last: Option<IpAddr>,
    /// The number of rounds since an address had its turn after another one.
    apart: u32,
    /// The work of this round for an address, in bytes.
    quantum: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self { debts: HashMap::default(), last: None, apart: ALONE, quantum: QUANTUM }
    }
}

impl Shares {
    /// Begins a round: each address gets a quantum. If all addresses that `waiting` yields are in debt, rounds are
    /// skipped until one of them has its turn. So the loop is never idle for fairness. Returns the quantum: it is small
    /// while several addresses are active, because a request waits for a turn of each other address.
    pub(crate) fn begin_round(&mut self, waiting: impl Iterator<Item = IpAddr>) -> usize {
        self.apart = self.apart.saturating_add(1);
        self.quantum = if self.apart < ALONE { SHORT } else { QUANTUM };
        if self.debts.len() <= 1 {
            self.debts.clear();
            return self.quantum;
        }
        let least = waiting.map(|address| self.debts.get(&address).copied().unwrap_or(0)).min();
        let skipped = (least.unwrap_or(0) + 1).saturating_sub(self.quantum);
        let paid = skipped.max(self.quantum);
        self.debts.retain(|_, debt| {
            *debt = debt.saturating_sub(paid);
            *debt > 0
        });
        self.quantum
    }

    /// Returns whether `address` has work left in this round.
    pub(crate) fn has_turn(&self, address: IpAddr) -> bool {
        self.debts.get(&address).is_none_or(|debt| *debt < self.quantum)
    }

    /// Adds `work` bytes to the work done for `address`.
    pub(crate) fn charge(&mut self, address: IpAddr, work: usize) {
        if self.last.replace(address).is_some_and(|last| last != address) {
            self.apart = 0;
        }
        if work > 0 {
            *self.debts.entry(address).or_default() += work;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAVY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const LIGHT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const MIB: usize = 1 << 20;

    /// Returns how often each client has its turn in `rounds` rounds, if both always want one.
    fn turns(rounds: usize, clients: [(IpAddr, usize); 2]) -> [usize; 2] {
        let (mut shares, mut turns) = (Shares::default(), [0; 2]);
        for _ in 0..rounds {
            shares.begin_round(clients.iter().map(|(address, _)| *address));
            for ((address, work), turns) in clients.into_iter().zip(&mut turns) {
                if shares.has_turn(address) {
                    shares.charge(address, work);
                    *turns += 1;
                }
            }
        }
        turns
    }

    #[test]
    fn turns_are_short_while_several_addresses_are_active() {
        let mut shares = Shares::default();
        let mut round = |address: Option<IpAddr>| {
            let quantum = shares.begin_round(address.into_iter());
            address.into_iter().for_each(|address| shares.charge(address, 2000));
            quantum
        };
        assert!((0..10).all(|_| round(Some(HEAVY)) == QUANTUM), "one address alone");
        assert_eq!([round(Some(LIGHT)), round(None), round(Some(HEAVY))], [QUANTUM, SHORT, SHORT]);
        let short = (0..).take_while(|_| round(Some(HEAVY)) == SHORT).count();
        assert_eq!(short, ALONE as usize - 1, "alone again");
        assert_eq!(round(Some(HEAVY)), QUANTUM);
    }

    #[test]
    fn small_requests_have_their_turn_in_each_round_and_large_ones_after_as_many_rounds_as_they_are_worth() {
        assert_eq!(turns(80, [(HEAVY, MIB), (LIGHT, 2000)]), [2, 80]);
        assert_eq!(turns(80, [(HEAVY, SHORT), (LIGHT, SHORT - 1)]), [80, 80]);
    }

    #[test]
    fn no_round_passes_without_a_turn() {
        for work in [2000, MIB] {
            assert_eq!(turns(80, [(HEAVY, work), (HEAVY, 0)])[0], 80, "alone");
        }
        let [one, other] = turns(80, [(HEAVY, MIB), (LIGHT, MIB)]);
        assert_eq!((one, other), (80, 80), "both with the same work");
        let [large, small] = turns(80, [(HEAVY, 4 * MIB), (LIGHT, MIB)]);
        assert!(small == 80 && (19..=21).contains(&large), "{large}");
    }

    #[test]
    fn the_connections_of_an_address_share_its_turn() {
        let mut shares = Shares::default();
        shares.charge(LIGHT, 1);
        for _ in 0..100 {
            assert!(shares.has_turn(HEAVY));
            shares.charge(HEAVY, QUANTUM / 100 + 1);
        }
        assert!(!shares.has_turn(HEAVY) && shares.has_turn(LIGHT));
    }

    #[test]
    fn an_address_that_asks_for_nothing_is_forgotten() {
        let mut shares = Shares::default();
        for n in 0..1000u32 {
            shares.charge(IpAddr::from(n.to_be_bytes()), MIB);
        }
        for _ in 0..MIB / SHORT {
            shares.begin_round([LIGHT].into_iter());
        }
        assert!(shares.debts.is_empty());
    }
}
