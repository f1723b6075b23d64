//! Deliberate bugs, one at a time, to prove that the simulator finds them.

forebay_common::planted_bugs![
    ; in scenarios:
    "a flush is answered before the frame is durable",
    "a write with FUA is answered before the frame is durable",
    "a write with FUA does not sync what went past the log",
    "a write with FUA flushes the volume",
    "a logged write is answered before its frame",
    "a flush does not sync what went past the log",
    "a map finds the dirty blocks after the holes",
    "a discard drops what only the log has",
    "zeros past the log leave older copies",
    "the key of a volume is taken for a file's",
    "a block that the device refuses counts as written",
    "a block that the device cannot read is zeros",
    "a read past the cache finds no dirty blocks",
    "a volume has the number of a file system",
];
