//! Every developer command, under the alias `cargo x`.

fn main() {}
