use super::*;

#[test]
fn worlds_end_well_and_the_same_way_each_time() {
    for seed in 1..=25 {
        let outcome = run(seed, false);
        assert_eq!(outcome.failure, None, "cargo x sim --joined --seed {seed}");
        if seed < 5 {
            assert_eq!(run(seed, false).digest, outcome.digest, "seed {seed}");
        }
    }
}
