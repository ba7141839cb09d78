//! What one rank meets, all ranks return.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::optim::ModuleOptimizer;
use burn_nccl::{Failure, GroupOptions, ProcessGroup};
use burn_nccl_records::checkpoint::{
    Checkpoint, CheckpointConfig, CheckpointFailure, Checkpointer, OnFailure, find_agreed,
};
use burn_nccl_records::{Error, Manifest};

use super::training::{Hooked, Net, at, names, net, saved, sgd, state, train};

/// Runs two ranks, whose collectives may each take this long.
pub(super) fn ranks<T: Send>(timeout: Duration, rank: impl Fn(usize, &ProcessGroup) -> T + Sync) -> Vec<T> {
    let groups = ProcessGroup::local(2, GroupOptions::default().with_timeout(timeout)).unwrap();
    std::thread::scope(|scope| {
        let run = |group: ProcessGroup| {
            let rank = &rank;
            scope.spawn(move || rank(group.rank(), &group))
        };
        let ranks: Vec<_> = groups.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const PATIENT: Duration = Duration::from_secs(60);

fn open(folder: &Path, group: &ProcessGroup) -> Result<Checkpointer, Error> {
    Checkpointer::open(folder, CheckpointConfig::default(), Some(group))
}

/// Asserts that both ranks return an error with this text, and returns the first.
fn same_error(errors: Vec<Result<(), Error>>) -> Error {
    let mut errors: Vec<Error> = errors.into_iter().map(Result::unwrap_err).collect();
    assert_eq!(errors[0].to_string(), errors[1].to_string());
    errors.remove(0)
}

// C10
#[test]
fn no_rank_returns_before_the_checkpoint_is_on_disk_however_long_that_takes() {
    let folder = tempfile::tempdir().unwrap();
    // Writing takes more than a collective may.
    let timeout = Duration::from_millis(400);
    let was_there = ranks(timeout, |rank, group| {
        let slow = Hooked(Arc::new(|| std::thread::sleep(Duration::from_millis(150))));
        let mut optimizer: ModuleOptimizer = slow.into();
        let model = train(net(1), &mut optimizer, 0..1);
        group.barrier().unwrap();
        let mut checkpointer = open(folder.path(), group).unwrap();
        checkpointer.save(&model, &optimizer, state(1)).unwrap();
        checkpointer.wait().unwrap();
        let was_there = at(folder.path(), 1).join("manifest.json").exists();
        checkpointer.finish().unwrap();
        (rank, was_there)
    });
    assert_eq!(was_there, [(0, true), (1, true)]);
}

/// The checkpoint of a step, complete by its sizes and altered, whose `model.bpk` takes `long` to read. The file is all
/// holes and takes no room; how long the reading takes is measured on a smaller one.
fn slow(folder: &Path, step: u64, long: Duration) {
    const MEASURED_BYTES: u64 = 128 << 20;
    let at = at(folder, step);
    let model = at.join("model.bpk");
    let resize = |bytes| std::fs::File::create(&model).unwrap().set_len(bytes).unwrap();
    let mut manifest = Manifest::read(&at).unwrap();
    manifest.files.sort_by_key(|file| file.name != "model.bpk");
    manifest.files[0].bytes = MEASURED_BYTES;
    resize(MEASURED_BYTES);
    let measure = |_| {
        let start = Instant::now();
        assert!(!manifest.verify(&at).is_intact());
        start.elapsed()
    };
    // The quickest: a machine that is busy now may not be so later.
    let quickest = (0..3).map(measure).min().unwrap();
    let bytes = MEASURED_BYTES as f64 * long.as_secs_f64() / quickest.as_secs_f64();
    manifest.files[0].bytes = bytes as u64;
    resize(bytes as u64);
    manifest.write(&at).unwrap();
}

#[test]
fn a_folder_may_take_longer_to_read_than_a_collective_may_take() {
    let timeout = Duration::from_millis(400);
    let folder = saved(&[(1, None), (9, None)], CheckpointConfig::default());
    slow(folder.path(), 9, 4 * timeout);
    let found = ranks(timeout, |_, group| find_agreed(folder.path(), Some(group)).unwrap());
    for found in found {
        assert_eq!(found.newest, Some(at(folder.path(), 1)));
        assert_eq!(found.broken[0].why, "model.bpk: altered, its SHA-256 is another");
    }
    // A save of an earlier step reads the later one, to see whether it would hide the new one.
    ranks(timeout, |_, group| {
        let mut checkpointer = open(folder.path(), group).unwrap();
        checkpointer.save(&net(1), &sgd(), state(2)).unwrap();
        checkpointer.finish().unwrap();
    });
    assert!(at(folder.path(), 2).join("manifest.json").exists());
}

#[test]
fn a_folder_that_is_in_use_is_the_same_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let _other = Checkpointer::open(folder.path(), CheckpointConfig::default(), None).unwrap();
    let error = same_error(ranks(PATIENT, |_, group| open(folder.path(), group).map(drop)));
    assert!(matches!(&error, Error::CheckpointFolder { failure: CheckpointFailure::InUse, .. }), "{error}");
}

#[test]
fn a_folder_that_cannot_be_made_is_the_same_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "").unwrap();
    let error = same_error(ranks(PATIENT, |_, group| open(&path, group).map(drop)));
    assert!(
        matches!(&error, Error::CheckpointFolder { failure: CheckpointFailure::File { .. }, .. }),
        "{error}"
    );
}

fn failing(folder: &Path, group: &ProcessGroup, on_failure: OnFailure) -> Result<(), Error> {
    let mut optimizer: ModuleOptimizer = Hooked(Arc::new(|| panic!("no space"))).into();
    let model = train(net(1), &mut optimizer, 0..1);
    let config = CheckpointConfig { on_failure, ..CheckpointConfig::default() };
    let mut checkpointer = Checkpointer::open(folder, config, Some(group))?;
    checkpointer.save(&model, &sgd(), state(1))?;
    checkpointer.save(&model, &optimizer, state(2))?;
    checkpointer.finish()
}

#[test]
fn a_checkpoint_that_fails_on_rank_0_is_the_same_error_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let error = same_error(ranks(PATIENT, |_, group| failing(folder.path(), group, OnFailure::Stop)));
    assert!(matches!(&error, Error::CheckpointNotSaved { step: 2, .. }), "{error}");
    assert!(error.to_string().contains("no space"), "{error}");
    assert_eq!(names(folder.path()), ["step-1"]);
}

#[test]
fn all_ranks_continue_where_they_are_to() {
    let folder = tempfile::tempdir().unwrap();
    ranks(PATIENT, |_, group| failing(folder.path(), group, OnFailure::Continue).unwrap());
    assert_eq!(names(folder.path()), ["step-1"]);
}

#[test]
fn ranks_in_different_calls_or_steps_are_told_so() {
    type Call = fn(usize, &mut Checkpointer) -> Result<(), Error>;
    let cases: [(Call, [&str; 2]); 2] = [
        (
            |rank, checkpointer| match rank {
                0 => checkpointer.wait(),
                _ => checkpointer.save(&net(1), &sgd(), state(3)),
            },
            ["`save of step 3`", "`wait`"],
        ),
        (
            |rank, checkpointer| checkpointer.save(&net(1), &sgd(), state(rank as u64)),
            ["`save of step 1`", "`save of step 0`"],
        ),
    ];
    for (call, parts) in cases {
        let folder = tempfile::tempdir().unwrap();
        let error = same_error(ranks(PATIENT, |rank, group| {
            let mut checkpointer = open(folder.path(), group).unwrap();
            call(rank, &mut checkpointer)
        }));
        assert!(matches!(&error, Error::CheckpointCalls { rank: 1, .. }), "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn a_rank_that_is_gone_is_the_groups_error() {
    let folder = tempfile::tempdir().unwrap();
    let ends = ranks(PATIENT, |rank, group| {
        let mut checkpointer = open(folder.path(), group).unwrap();
        if rank == 1 {
            group.abort("rank 1 has had enough");
        }
        checkpointer.save(&net(1), &sgd(), state(1))
    });
    for end in ends {
        let error = end.unwrap_err();
        assert!(matches!(&error, Error::Group(_)) && error.to_string().contains("has had enough"), "{error}");
    }
}

/// A model whose optimizer's state calls `hook` when it is written, before any tensor of the model is.
fn hooked(hook: impl Fn() + Send + Sync + 'static) -> (Net, ModuleOptimizer) {
    let mut optimizer: ModuleOptimizer = Hooked(Arc::new(hook)).into();
    (train(net(1), &mut optimizer, 0..1), optimizer)
}

/// Waits until the group has failed, as a step that is still under way on a GPU would let it fail.
fn wait_for_failure(group: &ProcessGroup) {
    let start = Instant::now();
    while group.check_health().is_ok() && start.elapsed() < PATIENT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 1 ends the group while rank 0 writes the second checkpoint; `end` is what the ranks do then.
fn ended_while_written(
    end: impl Fn(Checkpointer) -> Result<(), Error> + Sync,
) -> (tempfile::TempDir, Vec<Error>) {
    let folder = tempfile::tempdir().unwrap();
    let errors = ranks(PATIENT, |rank, group| {
        let seen = group.clone();
        let (model, optimizer) = hooked(move || wait_for_failure(&seen));
        let mut checkpointer = open(folder.path(), group)?;
        checkpointer.save(&model, &sgd(), state(1))?;
        checkpointer.save(&model, &optimizer, state(2))?;
        if rank == 1 {
            group.abort("rank 1 has lost its GPU");
        }
        end(checkpointer)
    });
    (folder, errors.into_iter().filter_map(Result::err).collect())
}

#[test]
fn a_group_that_fails_before_all_values_were_read_leaves_no_checkpoint() {
    let (folder, errors) = ended_while_written(Checkpointer::finish);
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert!(
            matches!(&error, Error::Group(_)) && error.to_string().contains("has lost its GPU"),
            "{error}"
        );
    }
    assert_eq!(names(folder.path()), ["step-1"]);
    // Nor where nobody asks how it ended.
    let (folder, errors) = ended_while_written(|checkpointer| {
        drop(checkpointer);
        Ok(())
    });
    assert!(errors.is_empty());
    assert_eq!(names(folder.path()), ["step-1"]);
}

#[test]
fn what_ended_the_group_is_why_the_checkpoint_was_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::single();
    let ending = group.clone();
    let (model, optimizer) = hooked(move || ending.abort("the GPU has fallen off the bus"));
    let mut checkpointer = open(folder.path(), &group).unwrap();
    checkpointer.save(&model, &optimizer, state(1)).unwrap();
    let error = checkpointer.finish().unwrap_err();
    let Error::CheckpointNotSaved { step: 1, failure: CheckpointFailure::Group { failure }, .. } = &error
    else {
        panic!("{error}")
    };
    let cause = Failure::Aborted { rank: 0, reason: "the GPU has fallen off the bus".into() };
    assert_eq!(failure, &cause);
    assert!(error.to_string().contains(&cause.to_string()), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn ranks_that_leave_on_purpose_do_not_harm_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    // Its sender is gone once rank 1 has left.
    let (left, has_left) = std::sync::mpsc::channel::<()>();
    let has_left = Mutex::new(has_left);
    let mut groups = ProcessGroup::local(2, GroupOptions::default()).unwrap();
    let (second, first) = (groups.pop().unwrap(), groups.pop().unwrap());
    std::thread::scope(|scope| {
        let folder = folder.path();
        scope.spawn(move || {
            let (model, optimizer) = hooked(move || {
                let waited = has_left.lock().unwrap().recv_timeout(PATIENT);
                assert_eq!(waited, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
                // For the goodbye to arrive.
                std::thread::sleep(Duration::from_millis(200));
            });
            let mut checkpointer = open(folder, &first).unwrap();
            checkpointer.save(&model, &optimizer, state(1)).unwrap();
            // Which lets it end.
            drop(checkpointer);
        });
        scope.spawn(move || {
            let mut checkpointer = open(folder, &second).unwrap();
            checkpointer.save(&net(1), &sgd(), state(1)).unwrap();
            drop((checkpointer, second));
            drop(left);
        });
    });
    assert_eq!(names(folder.path()), ["step-1"]);
    assert_eq!(Checkpoint::open(at(folder.path(), 1)).unwrap().state().step, 1);
}

#[test]
fn all_ranks_resume_from_the_checkpoint_that_rank_0_found() {
    let folder = saved(&[(9, None), (10, None)], CheckpointConfig::default());
    std::fs::remove_file(at(folder.path(), 10).join("model.bpk")).unwrap();
    // The folder may have another name on another machine.
    let mount = tempfile::tempdir().unwrap().path().join("mount");
    std::fs::create_dir_all(mount.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(folder.path(), &mount).unwrap();
    let paths = [folder.path(), &mount];
    let found = ranks(PATIENT, |rank, group| find_agreed(paths[rank], Some(group)).unwrap());
    for (rank, found) in found.iter().enumerate() {
        assert_eq!(found.newest, Some(at(paths[rank], 9)));
        assert_eq!((found.broken.len(), &found.broken[0].path), (1, &at(paths[rank], 10)));
        assert_eq!(found.broken[0].why, "model.bpk is missing");
        assert_eq!(Checkpoint::open(found.newest.as_ref().unwrap()).unwrap().state().step, 9);
    }
    std::fs::remove_dir_all(mount.parent().unwrap()).unwrap();
}

/// It is complete by its sizes to whoever does not hash it.
#[test]
fn ranks_that_see_the_same_altered_checkpoint_agree_that_there_is_none() {
    let folder = saved(&[(9, None)], CheckpointConfig::default());
    let model = at(folder.path(), 9).join("model.bpk");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    for found in ranks(PATIENT, |_, group| find_agreed(folder.path(), Some(group)).unwrap()) {
        assert_eq!((found.newest, found.broken.len()), (None, 1));
    }
}

// C10
#[test]
fn a_checkpoint_that_one_rank_does_not_see_is_an_error_on_all_ranks() {
    let (here, nothing) = (saved(&[(9, None)], CheckpointConfig::default()), tempfile::tempdir().unwrap());
    let other = saved(&[(9, Some(1.0))], CheckpointConfig::default());
    let [here, nothing, other] = [here.path(), nothing.path(), other.path()];
    for folders in [[here, nothing], [nothing, here], [here, other]] {
        let errors = ranks(PATIENT, |rank, group| find_agreed(folders[rank], Some(group)).map(drop));
        for error in errors {
            let error = error.unwrap_err();
            let Error::CheckpointNotVisible { ranks, .. } = &error else { panic!("{error}") };
            assert_eq!(ranks, &[1], "{error}");
        }
    }
    ranks(PATIENT, |_, group| assert_eq!(find_agreed(nothing, Some(group)).unwrap().newest, None));
}
