use super::*;

/// Seeds that once found bugs of the engine, the metadata log or the simulator, and some that never found one.
const SEEDS: [u64; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 34, 59, 62, 72, 121, 388, 471, 1976, 2000, 1602449, 1606527];

#[test]
fn worlds_end_well_and_the_same_way_each_time() {
    for seed in SEEDS {
        let outcome = run(seed, false);
        assert_eq!(outcome.failure, None, "cargo x sim --joined --seed {seed}");
        if seed < 5 {
            assert_eq!(run(seed, false).digest, outcome.digest, "seed {seed}");
        }
    }
}
