//! What communication hooks do to convergence on the digits, in short. The longer figures are in benches/README.md.

use burn_nccl::ddp::{Communication, PowerSgdConfig};
use burn_nccl_tests::digits::{Digits, Learned};

const EPOCHS: usize = 6;

fn train(communication: Communication) -> Learned {
    let ranks = Digits { communication, epochs: EPOCHS, seed: 0 }.train().expect("training succeeds");
    assert_eq!(ranks[0].sha256, ranks[1].sha256, "the ranks hold different weights");
    ranks.into_iter().next().expect("two ranks")
}

fn power_sgd(rank: usize) -> PowerSgdConfig {
    PowerSgdConfig::new().with_rank(rank).with_start_step(10)
}

#[test]
fn every_communication_hook_learns_the_digits_as_the_exact_average_does() {
    let exact = train(Communication::AllReduce);
    assert!(exact.accuracy > 92.0, "{exact:?}");
    let hooks = [Communication::F16, Communication::BF16]
        .into_iter()
        .chain([1, 2, 4].map(|rank| Communication::PowerSgd(power_sgd(rank))));
    for hook in hooks {
        let learned = train(hook.clone());
        assert_ne!(learned.sha256, exact.sha256, "{hook:?} must change something");
        // One of the 299 test images is 0.33%.
        assert!(learned.accuracy > exact.accuracy - 2.5, "{hook:?}: {learned:?}, exact {exact:?}");
        assert!(learned.loss < exact.loss * 1.5 + 0.02, "{hook:?}: {learned:?}, exact {exact:?}");
    }
}

#[test]
fn without_error_feedback_a_rank_of_one_learns_less() {
    let with = train(Communication::PowerSgd(power_sgd(1)));
    let without =
        train(Communication::PowerSgd(power_sgd(1).with_error_feedback(false).with_warm_start(false)));
    assert!(without.loss > with.loss * 1.2, "with {with:?}, without {without:?}");
}
