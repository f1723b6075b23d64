use super::*;
use forebay_engine::io::Device as _;

/// Seeds that once found bugs of the engine or of the simulator, and some that never found one.
const SEEDS: [u64; 37] = [
    2, 13, 26, 29, 40, 70, 82, 88, 126, 132, 191, 222, 361, 402, 430, 491, 508, 688, 696, 2060, 2113, 2179,
    2269, 2291, 2664, 2943, 2985, 3333, 20191, 20463, 1_200_324, 1_200_550, 1_201_673, 1_201_715, 1_700_030,
    1_731_142, 1_733_025,
];

#[test]
fn worlds_end_well_and_the_same_way_each_time() {
    for seed in SEEDS {
        let outcome = run(seed, false);
        assert_eq!(outcome.failure, None, "cargo x sim --seed {seed}");
        if seed < 100 {
            assert_eq!(run(seed, false).digest, outcome.digest, "seed {seed}");
        }
    }
}

/// The fault of a restart hits the device that misbehaves, also if it changes its name at that restart. The other
/// devices have the only good copies.
#[test]
fn swapped_names_do_not_pass_the_faults_of_a_restart_to_another_device() {
    let mut swapped = 0;
    for seed in 0..64 {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng);
        plan.devices = vec![64 << 20; 2];
        (plan.troubles, plan.disaster) = (vec![Trouble::Missing], None);
        (plan.victim, plan.foreign) = (0, true);
        let mut world = World::new(plan, rng, false);
        world.victim().make_xfs();
        let marked = world.victim().contents();
        // Only the sound device was in use, since the other one was left out.
        let sound = world.disks[1].name().to_owned();
        world.shared.epochs.rename(|names| names.push(sound.clone()));
        world.between();
        swapped += u32::from(world.plan.victim == 1);
        assert_eq!(world.victim().contents(), marked);
        let sound = &world.disks[1 - world.plan.victim];
        assert!(!sound.is_gone(), "seed {seed}: the sound device is left out");
        assert_eq!(world.shared.epochs.legs(), [sound.name()], "seed {seed}");
    }
    assert!(swapped > 10, "{swapped}");
}

/// Formatting that was cut short leaves a superblock on some devices. If a later start formatted the other devices
/// only, the world would have two pools, which the server keeps apart by the pool that it served last.
#[test]
fn a_pool_that_was_not_made_yet_is_made_of_all_devices() {
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng);
        (plan.devices, plan.victim) = (vec![64 << 20; 2], 0);
        (plan.troubles, plan.disaster) = (vec![Trouble::Turns], None);
        let mut world = World::new(plan, rng, false);
        world.cut_in_turn();
        assert!(world.disks.iter().all(|disk| !disk.is_gone()), "seed {seed}");
    }
}
