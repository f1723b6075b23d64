//! The pool: which devices there are, and what is on them.
