//! A checkpoint holds what the training held when it was asked for, whatever the training did meanwhile.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use burn::optim::ModuleOptimizer;
use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig};

use super::training::{Hooked, at, net, open, plain, state, train, values};

/// Parameters are values, while running statistics are a cell that the training goes on to write to.
#[test]
fn a_slow_writer_writes_the_values_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let (open_gate, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let mut optimizer: ModuleOptimizer = Hooked(Arc::new(move || {
        // Closed until the test drops its end.
        let _ = gate.lock().unwrap().recv();
    }))
    .into();
    let at_the_call = train(net(1), &mut optimizer, 0..3);
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&at_the_call, &optimizer, state(3)).unwrap();
    let expected = train(net(1), &mut plain(), 0..3);

    let later = train(at_the_call, &mut optimizer, 3..6);
    assert!(!at(folder.path(), 3).exists(), "the writer did not wait at the gate");
    drop(open_gate);
    checkpointer.finish().unwrap();

    let checkpoint = Checkpoint::open(at(folder.path(), 3)).unwrap();
    let loaded = checkpoint.load_model(&net(2)).unwrap();
    assert_ne!(values(&later), values(&expected));
    assert_eq!(values(&loaded), values(&expected));
    // The momentum is of that moment, too: three more steps lead where the training went.
    let mut resumed = checkpoint.load_optimizer(plain(), &loaded).unwrap();
    assert_eq!(values(&train(loaded, &mut resumed, 3..6)), values(&later));
}

#[test]
fn saving_changes_nothing_in_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let (mut with, mut without) = (plain(), plain());
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    let (mut saved, mut unsaved) = (net(1), net(1));
    for step in 0..4 {
        saved = train(saved, &mut with, step..step + 1);
        checkpointer.save(&saved, &with, state(step + 1)).unwrap();
        unsaved = train(unsaved, &mut without, step..step + 1);
    }
    checkpointer.finish().unwrap();
    assert_eq!(values(&saved), values(&unsaved));
}

#[test]
fn a_training_is_one_checkpoint_ahead_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let mut optimizer: ModuleOptimizer =
        Hooked(Arc::new(|| std::thread::sleep(std::time::Duration::from_millis(10)))).into();
    let model = train(net(1), &mut optimizer, 0..1);
    let mut checkpointer =
        open(folder.path(), CheckpointConfig { keep_last: 9, ..CheckpointConfig::default() });
    for step in 1..5 {
        checkpointer.save(&model, &optimizer, state(step)).unwrap();
        // The one before has ended, or this one would not have begun.
        assert!(step == 1 || at(folder.path(), step - 1).join("manifest.json").exists());
    }
    assert!(checkpointer.pause_seconds() > 0.01, "the last save did not wait for the one before");
    checkpointer.finish().unwrap();
}
