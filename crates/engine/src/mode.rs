//! The modes of the cache.

/// The rule for acknowledging a write. A later mode uses the cache less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The log has the write on two devices before the reply. The backing store gets it later.
    #[default]
    WriteBack,
    /// The backing store has the write before the reply. The cache keeps it as well.
    WriteThrough,
    /// The backing store has the write before the reply. The cache does not keep it.
    WriteAround,
    /// Neither writes nor reads are cached.
    PassThrough,
}

impl Mode {
    pub(crate) const ALL: [Mode; 4] =
        [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];
}
