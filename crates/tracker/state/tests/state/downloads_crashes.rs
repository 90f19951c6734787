//! What survives when the power fails, the process is killed or the disk refuses, at every operation in turn.

use crate::common::{Changes, Model, apply, counts, open, random_changes, world};
use swarmkeep::{Random, SplitMix64};
use swarmkeep_state::{
    Change, Downloads, InfoHash, Result,
    simulated::{Operation, Refusal, Simulated},
};

/// What was acknowledged, and what else may be found once a crash has come between.
struct Expected {
    committed: Model,
    /// What would be there if a step that failed had gone through, for each that did since the last that
    /// succeeded.
    possible: Vec<Model>,
}

impl Expected {
    fn new() -> Self {
        Self { committed: Model::new(), possible: Vec::new() }
    }

    /// Takes down how a step ended that was to lead to `after`.
    fn note(&mut self, after: Model, result: &Result<()>) {
        if result.is_ok() {
            *self = Self { committed: after, possible: Vec::new() };
        } else {
            self.possible.push(after);
        }
    }

    /// As [`settle_for`](Self::settle_for), after a kill: what is found is not durable yet, and what else was
    /// possible stays so until something is acknowledged.
    #[track_caller]
    fn go_on_from(&mut self, found: Model, when: &str) {
        let mut possible = std::mem::take(&mut self.possible);
        possible.push(self.committed.clone());
        self.possible = possible.clone();
        self.settle_for(found, when);
        self.possible = possible;
    }

    /// Asserts that the counts are what may be found after a crash, and goes on from there.
    #[track_caller]
    fn settle_for(&mut self, found: Model, when: &str) {
        let allowed = self.committed == found || self.possible.contains(&found);
        assert!(
            allowed,
            "{when}: found {found:?}, committed {:?}, possible {:?}",
            self.committed, self.possible
        );
        *self = Self { committed: found, possible: Vec::new() };
    }
}

enum Step {
    Commit(Changes),
    Import(Changes),
    Maintain,
    Reopen,
}

/// Commits of one block and of several, more than a log holds; seals, merges, an import, the program ending
/// well in between.
fn workload(world: &[InfoHash]) -> Vec<Step> {
    let mut rng = SplitMix64::new(11);
    let mut steps = Vec::new();
    for n in 0..18 {
        let most = if n % 5 == 4 { 70 } else { 6 };
        steps.push(Step::Commit(random_changes(&mut rng, world, most)));
        match n {
            7 => {
                let some = world.iter().filter(|_| rng.next_u64().is_multiple_of(3));
                let add = |&torrent: &InfoHash| (torrent, Change { forget: false, add: 100 });
                steps.push(Step::Import(some.map(add).collect()));
            }
            4 | 12 => steps.push(Step::Reopen),
            _ if n % 2 == 0 => steps.push(Step::Maintain),
            _ => {}
        }
    }
    steps
}

fn import(downloads: &mut Downloads, counts: &Changes) -> Result<()> {
    downloads.add_sorted(counts.iter().map(|(info_hash, change)| Ok((*info_hash, change.add))))
}

/// The workload, until the first error. Nothing of what fails is tried again.
fn run_until_the_end(folder: &Simulated, steps: &[Step], expected: &mut Expected) -> Result<()> {
    let mut downloads = open(folder)?;
    for step in steps {
        match step {
            Step::Commit(changes) => {
                let result = downloads.commit(changes.iter().copied());
                expected.note(apply(&expected.committed, changes), &result);
                result?;
            }
            Step::Import(changes) => {
                let result = import(&mut downloads, changes);
                expected.note(apply(&expected.committed, changes), &result);
                result?;
            }
            Step::Maintain => downloads.settle()?,
            Step::Reopen => {
                drop(downloads);
                downloads = open(folder)?;
            }
        }
    }
    Ok(())
}

/// Commits and tidies, without faults.
fn go_on(folder: &Simulated, world: &[InfoHash], expected: &mut Expected, seed: u64) {
    let mut rng = SplitMix64::new(seed);
    let mut downloads = open(folder).unwrap();
    for n in 0..3 {
        let changes = random_changes(&mut rng, world, 12);
        downloads.commit(changes.iter().copied()).unwrap();
        expected.note(apply(&expected.committed, &changes), &Ok(()));
        if (seed + n).is_multiple_of(3) {
            downloads.settle().unwrap();
        }
    }
    assert_eq!(counts(&downloads, world).unwrap(), expected.committed);
}

fn found(folder: &Simulated, world: &[InfoHash]) -> Model {
    counts(&open(folder).unwrap_or_else(|error| panic!("{error}\n{folder:?}")), world).unwrap()
}

/// The operations of the workload when nothing goes wrong, at which it makes a difference whether something
/// does.
fn changing_operations(steps: &[Step]) -> Vec<usize> {
    let folder = Simulated::new(2);
    run_until_the_end(&folder, steps, &mut Expected::new()).unwrap();
    let operations = folder.operations();
    for kind in
        [Operation::Create, Operation::Rename, Operation::Remove, Operation::SyncFolder, Operation::Sync]
    {
        assert!(operations.iter().filter(|&&operation| operation == kind).count() > 10, "{kind:?}");
    }
    (0..operations.len()).filter(|&at| operations[at].changes()).collect()
}

#[test]
fn a_power_cut_at_any_moment_loses_at_most_the_commit_in_progress() {
    let world = world(50);
    let steps = workload(&world);
    for at in changing_operations(&steps) {
        let folder = Simulated::new(2);
        folder.cut_power(at);
        let mut expected = Expected::new();
        let ended = run_until_the_end(&folder, &steps, &mut expected);
        assert!(ended.is_err() || folder.operations()[at] == Operation::Remove, "operation {at}");
        for seed in 0..12 {
            let disk = folder.after_power_cut(seed);
            let mut expected =
                Expected { committed: expected.committed.clone(), possible: expected.possible.clone() };
            expected.settle_for(found(&disk, &world), &format!("power cut at {at}, seed {seed}"));
            if seed % 4 == 2 {
                go_on(&disk, &world, &mut expected, seed + at as u64);
                let again = disk.after_power_cut(seed);
                assert_eq!(
                    found(&again, &world),
                    expected.committed,
                    "power cut at {at}, seed {seed}, and again"
                );
            }
        }
    }
}

#[test]
fn a_kill_at_any_moment_loses_at_most_the_commit_in_progress_and_a_power_cut_later_no_more() {
    let world = world(50);
    let steps = workload(&world);
    for at in changing_operations(&steps) {
        for seed in 2..5 {
            let folder = Simulated::new(seed);
            folder.kill(at);
            let mut expected = Expected::new();
            let _ = run_until_the_end(&folder, &steps, &mut expected);
            let next = folder.after_kill();
            expected.settle_for(found(&next, &world), &format!("killed at {at}, seed {seed}"));
            // The first process never synced what the second one found; the second one must.
            go_on(&next, &world, &mut expected, seed + at as u64);
            for cut in [0, 1, 2 + seed] {
                let disk = next.after_power_cut(cut);
                assert_eq!(
                    found(&disk, &world),
                    expected.committed,
                    "killed at {at}, seed {seed}, cut {cut}"
                );
            }
        }
    }
}

/// One crash after another, of all kinds, at random moments, with merges beside the commits half of the time.
#[test]
fn many_lives_and_deaths_lose_nothing() {
    let world = world(50);
    for history in 0..250 {
        let mut rng = SplitMix64::new(history);
        let mut below = |most: usize| rng.next_u64() as usize % most;
        let mut folder = Simulated::new(2 + history);
        let mut expected = Expected::new();
        for life in 0..8 {
            let at = folder.operations().len() + below(90);
            let power_fails = below(2) == 0;
            match below(4) {
                0 => folder.refuse(at, 1 + below(3), Refusal::Device),
                _ if power_fails => folder.cut_power(at),
                _ => folder.kill(at),
            }
            let mut steps = SplitMix64::new(history * 100 + life);
            let _ = live(&folder, &world, &mut expected, &mut steps);
            let when = format!("history {history}, life {life}");
            if power_fails {
                folder = folder.after_power_cut(below(1000) as u64);
                expected.settle_for(found(&folder, &world), &when);
            } else {
                folder = folder.after_kill();
                expected.go_on_from(found(&folder, &world), &when);
            }
        }
    }
}

/// Random steps, until the first error.
fn live(folder: &Simulated, world: &[InfoHash], expected: &mut Expected, rng: &mut SplitMix64) -> Result<()> {
    let mut downloads = open(folder)?;
    let in_background = rng.next_u64().is_multiple_of(2);
    for _ in 0..12 {
        let kind = rng.next_u64() % 8;
        match kind {
            0..=4 => {
                let mut changes = random_changes(rng, world, if kind == 0 { 60 } else { 6 });
                // A commit that changes nothing writes nothing: it says nothing of what was found.
                changes.push((world[0], Change { forget: false, add: 1 }));
                let result = downloads.commit(changes.iter().copied());
                expected.note(apply(&expected.committed, &changes), &result);
                result?;
            }
            5 => {
                let some = world.iter().filter(|_| rng.next_u64().is_multiple_of(3));
                let add = |&torrent: &InfoHash| (torrent, Change { forget: false, add: 100 });
                let changes: Changes = some.map(add).collect();
                let result = import(&mut downloads, &changes);
                expected.note(apply(&expected.committed, &changes), &result);
                result?;
            }
            _ if in_background => downloads.maintain()?,
            _ => downloads.settle()?,
        }
        assert_eq!(counts(&downloads, world)?, expected.committed);
    }
    Ok(())
}

/// The workload of a caller that keeps what was refused, and commits it again together with more.
fn run_with_retries(folder: &Simulated, world: &[InfoHash], steps: &[Step], expected: &mut Expected) {
    let mut downloads = None;
    let mut waiting = Changes::new();
    for step in steps {
        if downloads.is_none() {
            downloads = open(folder).ok();
        }
        let Some(database) = &mut downloads else {
            if let Step::Commit(changes) = step {
                waiting.extend(changes);
            }
            continue;
        };
        match step {
            Step::Commit(changes) => {
                waiting.extend(changes);
                let result = database.commit(waiting.iter().copied());
                expected.note(apply(&expected.committed, &waiting), &result);
                if result.is_ok() {
                    waiting.clear();
                }
            }
            Step::Import(changes) => {
                let result = import(database, changes).or_else(|_| import(database, changes));
                expected.note(apply(&expected.committed, changes), &result);
            }
            Step::Maintain => {
                let _ = database.settle();
            }
            // A caller that waits to commit again does not end here: with it, what it waits with would.
            Step::Reopen if waiting.is_empty() => {
                drop(downloads.take());
                downloads = open(folder).ok();
                // What nobody waits for any more can be there or not, and now we see which.
                if let Some(database) = &downloads
                    && let Ok(found) = counts(database, world)
                {
                    expected.settle_for(found, "opened again");
                }
                continue;
            }
            Step::Reopen => {}
        }
        match counts(database, world) {
            Ok(found) => assert_eq!(found, expected.committed, "what is read is what was committed"),
            Err(error) => assert!(error.to_string().contains("reading"), "{error}"),
        }
    }
    folder.heal();
    let mut database = downloads.unwrap_or_else(|| open(folder).unwrap());
    assert_eq!(counts(&database, world).unwrap(), expected.committed, "before the last commit");
    waiting.push((world[0], Change { forget: false, add: 1 }));
    database.commit(waiting.iter().copied()).unwrap();
    expected.note(apply(&expected.committed, &waiting), &Ok(()));
    assert_eq!(counts(&database, world).unwrap(), expected.committed, "after the last commit");
}

fn refuse_everything_in_turn(count: usize, refusal: Refusal) {
    let world = world(50);
    let steps = workload(&world);
    let operations = {
        let folder = Simulated::new(2);
        run_until_the_end(&folder, &steps, &mut Expected::new()).unwrap();
        folder.operations().len()
    };
    for at in 0..operations {
        for seed in [2, 3] {
            let folder = Simulated::new(seed);
            folder.refuse(at, count, refusal);
            let mut expected = Expected::new();
            run_with_retries(&folder, &world, &steps, &mut expected);
            let when = |then: &str| format!("{count} refused from {at}, seed {seed}, then {then}");
            assert_eq!(found(&folder.after_kill(), &world), expected.committed, "{}", when("opened"));
            for cut in [0, 1, 7] {
                let disk = folder.after_power_cut(cut);
                assert_eq!(found(&disk, &world), expected.committed, "{}", when("a power cut"));
            }
            let mut database = open(&folder).unwrap();
            database.settle().unwrap();
            assert_eq!(counts(&database, &world).unwrap(), expected.committed, "{}", when("settled"));
        }
    }
}

#[test]
fn what_is_refused_once_is_counted_once_when_it_is_tried_again() {
    refuse_everything_in_turn(1, Refusal::Device);
}

#[test]
fn a_few_refusals_in_a_row_lose_nothing() {
    refuse_everything_in_turn(4, Refusal::Device);
}

#[test]
fn a_disk_that_stays_full_loses_nothing_and_takes_all_when_there_is_room() {
    refuse_everything_in_turn(usize::MAX, Refusal::Full);
}

/// Power fails at every later operation, while what was refused before is tried again.
#[test]
fn a_refusal_and_then_a_power_cut_count_nothing_twice() {
    let world = world(30);
    let mut rng = SplitMix64::new(5);
    let commits: Vec<Changes> = (0..6)
        .map(|n| {
            let add = |&torrent| (torrent, Change { forget: false, add: 1 + n });
            let many = if n % 2 == 0 { 30 } else { 3 };
            world.iter().filter(|_| rng.next_u64().is_multiple_of(2)).take(many).map(add).collect()
        })
        .collect();
    let run = |folder: &Simulated, refused: usize, cut: Option<usize>| {
        let mut expected = Expected::new();
        let mut waiting = Changes::new();
        let Ok(mut downloads) = open(folder) else { return expected };
        folder.refuse(refused, 1, Refusal::Device);
        for changes in &commits {
            waiting.extend(changes);
            let result = downloads.commit(waiting.iter().copied());
            expected.note(apply(&expected.committed, &waiting), &result);
            match (result.is_ok(), cut) {
                (true, _) => waiting.clear(),
                (false, Some(later)) => folder.cut_power(refused + 1 + later),
                (false, None) => {}
            }
        }
        expected
    };
    let operations = {
        let folder = Simulated::new(2);
        run(&folder, usize::MAX, None);
        folder.operations().len()
    };
    for refused in 0..operations {
        for later in 0..14 {
            let folder = Simulated::new(3);
            let expected = run(&folder, refused, Some(later));
            for seed in 0..8 {
                let disk = folder.after_power_cut(seed);
                let mut expected =
                    Expected { committed: expected.committed.clone(), possible: expected.possible.clone() };
                expected.settle_for(
                    found(&disk, &world),
                    &format!("refused {refused}, cut {later}, seed {seed}"),
                );
            }
        }
    }
}

/// The last block may be in the page cache only, and a sync that failed before the process was killed makes
/// the next one answer for nothing.
#[test]
fn what_is_found_after_a_kill_is_durable_before_more_is_written() {
    let world = world(50);
    let add = |torrents: &[InfoHash], add| -> Changes {
        torrents.iter().map(|&torrent| (torrent, Change { forget: false, add })).collect()
    };
    let (first, second, third) = (add(&world[..2], 1), add(&world[..30], 10), add(&world[..2], 100));
    for refused in [0, 1, 2] {
        // Of what this folder refuses, nothing is done.
        let folder = Simulated::new(0);
        let mut downloads = Downloads::open(std::sync::Arc::new(folder.clone())).unwrap();
        downloads.commit(first.iter().copied()).unwrap();
        let write = folder.operations().len();
        if refused == 0 {
            folder.kill(write + 1);
        } else {
            folder.refuse(write + 1, refused, Refusal::Device);
        }
        downloads.commit(second.iter().copied()).unwrap_err();
        assert_eq!(folder.operations()[write..write + 2], [Operation::Write, Operation::Sync]);
        drop(downloads);

        for cut in 0..10 {
            let next = folder.after_kill();
            let mut expected = Expected { committed: apply(&Model::new(), &first), possible: Vec::new() };
            expected.possible.push(apply(&expected.committed, &second));
            let mut downloads = Downloads::open(std::sync::Arc::new(next.clone())).unwrap();
            expected.settle_for(counts(&downloads, &world).unwrap(), "opened");
            let was_there = expected.committed.len() == 30;
            assert_eq!(
                was_there,
                refused != 1,
                "refused {refused}: a refused commit is erased, if that is not refused too"
            );
            next.cut_power(next.operations().len() + cut);
            let result = downloads.commit(third.iter().copied());
            expected.note(apply(&expected.committed, &third), &result);
            if result.is_err() {
                // Before it has acknowledged anything, what the killed process had not synced, or erased, may
                // go or come.
                expected.possible.push(apply(&Model::new(), &first));
                expected.possible.push(apply(&apply(&Model::new(), &first), &second));
            }
            for seed in 0..40 {
                let disk = next.after_power_cut(seed);
                let mut expected =
                    Expected { committed: expected.committed.clone(), possible: expected.possible.clone() };
                expected
                    .settle_for(found(&disk, &world), &format!("refused {refused}, cut {cut}, seed {seed}"));
            }
        }
    }
}

/// A run whose name was not made durable stands for a log that goes on: it must not come back.
#[test]
fn a_commit_after_a_failed_seal_survives_a_power_cut() {
    let world = world(50);
    let mut rng = SplitMix64::new(6);
    let mut run = |refused: usize| {
        let folder = Simulated::new(2);
        let mut downloads = Downloads::open_with(
            std::sync::Arc::new(folder.clone()),
            crate::common::small().log_bytes(16 << 10).log_entries(20),
        )
        .unwrap();
        let mut model = Model::new();
        let mut commit = |downloads: &mut Downloads| {
            let changes = random_changes(&mut rng.clone(), &world, 8);
            rng.next_u64();
            downloads.commit(changes.iter().copied()).unwrap();
            model = apply(&model, &changes);
        };
        while downloads.entries() <= 10 {
            commit(&mut downloads);
        }
        let from = folder.operations().len();
        folder.refuse(from + refused, 1, Refusal::Device);
        let sealed = downloads.settle();
        folder.heal();
        commit(&mut downloads);
        for seed in 0..60 {
            let disk = folder.after_power_cut(seed);
            assert_eq!(found(&disk, &world), model, "refused {refused}, seed {seed}");
        }
        sealed.is_ok()
    };
    let refused = (0..).find(|&refused| run(refused)).unwrap();
    assert!(refused > 4, "{refused} operations of a seal");
}

#[test]
fn a_commit_that_was_refused_is_not_there_when_the_program_ends_well() {
    let folder = Simulated::new(2);
    let mut downloads = open(&folder).unwrap();
    let torrent = InfoHash::new([1; 20]);
    let add = |add| [(torrent, Change { forget: false, add })];
    downloads.commit(add(1)).unwrap();
    let sync = folder.operations().len() + 1;
    folder.refuse(sync, 1, Refusal::Device);
    downloads.commit(add(2)).unwrap_err();
    assert_eq!(folder.operations()[sync], Operation::Sync, "all of the block was written");
    drop(downloads);
    assert_eq!(open(&folder).unwrap().get(&torrent).unwrap(), 1);
}

/// It would fill the disk each time, beside commits that need little.
#[test]
fn a_merge_that_fails_is_not_begun_again_at_once() {
    let world = world(400);
    let folder = Simulated::new(2);
    let mut downloads = Downloads::open(std::sync::Arc::new(folder.clone())).unwrap();
    for _ in 0..2 {
        downloads.add_sorted(world.iter().map(|&torrent| Ok((torrent, 1)))).unwrap();
    }
    folder.refuse(0, usize::MAX, Refusal::Full);
    let before = folder.operations().len();
    for _ in 0..200 {
        let _ = downloads.maintain();
        while downloads.is_merging() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let _ = downloads.maintain();
        }
    }
    let operations = folder.operations();
    let begun = operations[before..].iter().filter(|&&operation| operation == Operation::Create).count();
    assert!((4..=9).contains(&begun), "{begun} merges");
    folder.heal();
    for _ in 0..130 {
        downloads.maintain().unwrap();
    }
    downloads.settle().unwrap();
    assert_eq!((downloads.runs(), downloads.get(&world[0]).unwrap()), (1, 2));
}

#[test]
fn a_folder_that_cannot_be_written_to_can_be_read() {
    let world = world(50);
    let folder = Simulated::new(2);
    let mut expected = Expected::new();
    run_until_the_end(&folder, &workload(&world), &mut expected).unwrap();
    folder.put("downloads-1-1.run.partial", b"left over");
    let names = format!("{folder:?}");

    // Refuses what changes something, one by one, as `heal` and `refuse` let it.
    let read_only = ReadOnly(folder.clone());
    let mut downloads = Downloads::open_with(std::sync::Arc::new(read_only), crate::common::small()).unwrap();
    assert_eq!(counts(&downloads, &world).unwrap(), expected.committed);
    let change = (world[0], Change { forget: true, add: 7 });
    let error = downloads.commit([change]).unwrap_err();
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    assert_eq!(counts(&downloads, &world).unwrap(), expected.committed);
    assert_eq!(format!("{folder:?}"), names);
}

/// A folder in a file system that is mounted read-only.
#[derive(Debug)]
struct ReadOnly(Simulated);

impl swarmkeep_state::Folder for ReadOnly {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path(name)
    }

    fn names(&self) -> std::io::Result<Vec<String>> {
        self.0.names()
    }

    fn open(&self, name: &str) -> std::io::Result<Box<dyn swarmkeep_state::File>> {
        self.0.open(name)
    }

    fn open_to_write(&self, _: &str) -> std::io::Result<Box<dyn swarmkeep_state::File>> {
        Err(std::io::Error::from_raw_os_error(30))
    }

    fn create(&self, _: &str) -> std::io::Result<Box<dyn swarmkeep_state::File>> {
        Err(std::io::Error::from_raw_os_error(30))
    }

    fn rename(&self, _: &str, _: &str) -> std::io::Result<()> {
        Err(std::io::Error::from_raw_os_error(30))
    }

    fn remove(&self, _: &str) -> std::io::Result<()> {
        Err(std::io::Error::from_raw_os_error(30))
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}
