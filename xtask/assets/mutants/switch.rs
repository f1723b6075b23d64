
#[doc(hidden)]
#[allow(missing_docs, warnings)]
pub mod mutant_switch {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    static SEEN: [AtomicBool; 10000] = [const { AtomicBool::new(false) }; 10000];

    fn active() -> usize {
        static ACTIVE: OnceLock<usize> = OnceLock::new();
        let wanted = || std::env::var("FOREBAY_MUTANT").ok().and_then(|text| text.parse().ok());
        *ACTIVE.get_or_init(|| wanted().unwrap_or(0))
    }

    fn reached(number: usize) {
        static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();
        let open = |path| std::fs::OpenOptions::new().append(true).create(true).open(path).ok();
        if let Some(mut file) = FILE.get_or_init(|| std::env::var_os("FOREBAY_REACHED").and_then(open)).as_ref() {
            let _ = file.write_all(format!("{number}\n").as_bytes());
        }
    }

    pub fn is(number: usize) -> bool {
        if !SEEN[number].load(Relaxed) && !SEEN[number].swap(true, Relaxed) {
            reached(number);
        }
        active() == number
    }
}
