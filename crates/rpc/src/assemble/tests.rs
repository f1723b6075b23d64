use super::*;

const MAX: usize = 1 << 20;

fn mark(len: usize, last: bool) -> [u8; 4] {
    (len as u32 | u32::from(last) << 31).to_be_bytes()
}

/// A receiver that works like the event loop: bytes arrive in pieces, directly where the assembler offers space.
struct Receiver {
    account: Arc<Account>,
    assembler: Assembler,
    records: Vec<Vec<u8>>,
    session: Option<&'static dyn Session>,
}

impl Receiver {
    fn new() -> Self {
        Self {
            account: Account::new(crate::pool::Pool::new(MAX, 64 << 20)),
            assembler: Assembler::default(),
            records: Vec::new(),
            session: None,
        }
    }

    fn deliver(&mut self, mut bytes: &[u8]) -> Result<(), CloseReason> {
        let space = self.assembler.direct();
        let direct = space.len().min(bytes.len());
        space[..direct].copy_from_slice(&bytes[..direct]);
        bytes = &bytes[direct..];
        if direct > 0
            && let Some(record) = self.assembler.received(direct)
        {
            self.records.push(record.buf[..record.len].to_vec());
        }
        while !bytes.is_empty() {
            match self.assembler.next(&mut bytes, self.session, MAX, &self.account)? {
                Next::Whole(record) => self.records.push(record.to_vec()),
                Next::Assembled(record) => self.records.push(record.buf[..record.len].to_vec()),
                Next::More => assert!(bytes.is_empty()),
                Next::Starved => panic!("there is memory"),
            }
        }
        Ok(())
    }
}

fn refused(pieces: impl IntoIterator<Item = Vec<u8>>) -> Option<CloseReason> {
    let mut receiver = Receiver::new();
    pieces.into_iter().find_map(|piece| receiver.deliver(&piece).err())
}

#[test]
fn every_fragmentation_of_a_small_record_in_every_piece_size() {
    let record: Vec<u8> = (1..=9).collect();
    for cuts in 0u32..1 << (record.len() - 1) {
        let mut stream = Vec::new();
        let mut from = 0;
        for to in 1..=record.len() {
            if to == record.len() || cuts >> (to - 1) & 1 == 1 {
                stream.extend(mark(to - from, to == record.len()));
                stream.extend(&record[from..to]);
                from = to;
            }
        }
        let twice = stream.repeat(2);
        for size in (1..16).chain([twice.len()]) {
            let mut receiver = Receiver::new();
            twice.chunks(size).for_each(|piece| receiver.deliver(piece).unwrap());
            assert_eq!(receiver.records, [&record[..], &record[..]], "cuts {cuts:b}, pieces of {size}");
            assert!(!receiver.assembler.partial());
            assert_eq!(receiver.account.held(), 0);
        }
    }
}

#[test]
fn random_records_fragments_and_pieces() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    for _ in 0..200 {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..8 {
            let bound = [64, 5000, 40_000, 300_000][random(4)];
            let record: Vec<u8> = (0..1 + random(bound)).map(|at| (at * 7) as u8).collect();
            let mut rest = &record[..];
            while !rest.is_empty() {
                let take = if random(2) == 0 { rest.len() } else { random(rest.len() + 1) };
                stream.extend(mark(take, take == rest.len()));
                stream.extend(&rest[..take]);
                rest = &rest[take..];
            }
            expected.push(record);
        }
        let mut receiver = Receiver::new();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let bound = [4, 2000, 100_000][random(3)];
            let (piece, behind) = rest.split_at((1 + random(bound)).min(rest.len()));
            receiver.deliver(piece).unwrap();
            rest = behind;
        }
        assert!(receiver.records == expected);
        assert_eq!(receiver.account.held(), 0);
    }
}

#[test]
fn a_claimed_length_takes_no_large_buffer() {
    let mut receiver = Receiver::new();
    receiver.deliver(&mark(MAX, true)).unwrap();
    assert_eq!(receiver.account.held(), 0);
    receiver.deliver(&[0; EARLY - 1]).unwrap();
    assert_eq!(receiver.account.held(), SMALL);
    receiver.deliver(&[0]).unwrap();
    assert_eq!(receiver.account.held(), MAX);
}

#[test]
fn too_long_is_refused_when_announced() {
    let longest = vec![0; MAX];
    assert_eq!(refused([mark(MAX, true).to_vec(), longest.clone()]), None);
    for len in [MAX + 1, 0x7fff_ffff] {
        for last in [true, false] {
            assert_eq!(refused([mark(len, last).to_vec()]), Some(CloseReason::RecordTooLong));
        }
    }
    let sum = [mark(MAX, false).to_vec(), longest, mark(1, true).to_vec()];
    assert_eq!(refused(sum), Some(CloseReason::RecordTooLong));
}

#[test]
fn an_empty_record_is_refused() {
    assert_eq!(refused([mark(0, true).to_vec()]), Some(CloseReason::EmptyRecord));
    assert_eq!(refused([mark(0, false).to_vec(), mark(0, true).to_vec()]), Some(CloseReason::EmptyRecord));
}

#[test]
fn the_longest_record_in_fragments_of_a_byte_each_behind_empty_ones() {
    let mut receiver = Receiver::new();
    let record: Vec<u8> = (0..MAX).map(|at| (at * 7) as u8).collect();
    let mut stream = Vec::with_capacity(9 * MAX);
    for (at, byte) in record.iter().enumerate() {
        stream.extend(mark(0, false));
        stream.extend(mark(1, at + 1 == MAX));
        stream.push(*byte);
    }
    for piece in stream.chunks(64 << 10) {
        receiver.deliver(piece).unwrap();
        assert!(receiver.account.held() <= MAX);
    }
    assert!(receiver.records == [record]);
    assert_eq!(receiver.account.held(), 0);
}

#[test]
fn starving_takes_nothing_in_and_goes_on_later() {
    let mut receiver = Receiver::new();
    // The leases take all memory, and the one buffer beyond the limit.
    let held: Vec<_> = std::iter::from_fn(|| receiver.account.lease(MAX)).collect();
    let stream = [&mark(6000, true)[..], &[9; 5000]].concat();
    let mut input = &stream[..];
    assert!(matches!(receiver.assembler.next(&mut input, None, MAX, &receiver.account), Ok(Next::Starved)));
    assert_eq!(input.len(), 5000);
    drop(held);
    receiver.deliver(input).unwrap();
    receiver.deliver(&[9; 1000]).unwrap();
    assert!(receiver.records == [[9; 6000]]);
}

/// Messages with a header of three bytes: a one, and the number of 4096 bytes and of bytes behind it.
struct Lengths;

impl Session for Lengths {
    fn header(&self) -> usize {
        3
    }

    fn message(&self, header: &[u8]) -> Result<usize, CloseReason> {
        match header {
            [1, high, low] => Ok(3 + usize::from(*high) * 4096 + usize::from(*low)),
            _ => Err(CloseReason::Service),
        }
    }
}

#[test]
fn messages_in_every_piece_size_keep_their_headers() {
    let message = |high: u8, low: u8| {
        let body = usize::from(high) * 4096 + usize::from(low);
        [vec![1, high, low], (0..body).map(|at| at as u8).collect()].concat()
    };
    let messages = [(0, 0), (0, 9), (5, 1), (0, 0), (1, 0), (0, 255)].map(|(high, low)| message(high, low));
    let stream = messages.concat();
    for size in (1..40).chain([4095, 4096, 4097, stream.len()]) {
        let mut receiver = Receiver { session: Some(&Lengths), ..Receiver::new() };
        stream.chunks(size).for_each(|piece| receiver.deliver(piece).unwrap());
        assert!(receiver.records == messages, "pieces of {size}");
        assert!(!receiver.assembler.partial());
        assert_eq!(receiver.account.held(), 0);
    }
}

#[test]
fn a_message_that_is_too_long_or_has_a_bad_header_closes_the_connection() {
    for size in 1..4 {
        let refused = |bytes: &[u8]| {
            let mut receiver = Receiver { session: Some(&Lengths), ..Receiver::new() };
            bytes.chunks(size).find_map(|piece| receiver.deliver(piece).err())
        };
        assert_eq!(refused(&[1, 255, 255]), (255 * 4096 + 258 > MAX).then_some(CloseReason::RecordTooLong));
        assert_eq!(refused(&[2, 0, 0]), Some(CloseReason::Service));
    }
}
