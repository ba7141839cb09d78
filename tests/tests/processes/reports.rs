//! What was reported of other projects and must not happen here, where no other test already shows it.
//!
//! "DDP hang / error" and "Launcher / devices" of the list of public reports, and the test that shows each:
//!
//! | report | test |
//! |---|---|
//! | D1 uneven batches hang | `uneven::three_and_five_batches_are_an_error_on_both_ranks_in_strict_mode`, `uneven::joined_ranks_with_three_and_five_batches_average_over_those_that_have_data` |
//! | D2 unused parameters without names | `uneven::a_branch_that_one_rank_leaves_out_is_named_on_all_ranks_in_the_same_step` |
//! | D4 different models hang rank 0 | `uneven::one_extra_layer_on_one_rank_is_shown_on_all_ranks` |
//! | D6 hang before training | `d6_a_rank_that_never_joins_is_named_when_the_time_is_up` |
//! | D7 autodiff panics with several devices | `determinism::two_hundred_steps_on_forks_and_clones_end_with_equal_parameters` |
//! | D8 sum where a mean is meant | `d8_one_global_batch_gives_one_two_and_four_ranks_the_same_parameters` |
//! | D10 one group only | `d10_two_halves_of_a_job_train_at_the_same_time`, `d10_a_rank_that_dies_ends_its_groups_and_no_other`, and `Part::ManyGroups` of the conformance suite |
//! | D11 the others wait for a rank that threw | `d11_a_panic_in_the_backward_pass_ends_the_others_within_two_seconds` |
//! | D12 another collective on one rank | `different_collectives_are_an_error_that_names_both_on_every_rank` of `burn-nccl`'s `failures` |
//! | D14 other sums on another transport | `Part::Rounding` of the conformance suite, `determinism::all_ranks_all_runs_and_all_bucket_sizes_end_with_the_same_bits` |
//! | D15 a timeout without a cause | `d15_a_timeout_of_one_second_says_what_waited_for_whom_and_what_came_before` |
//! | L1 a second job finds the port taken | `launchers::four_jobs_that_are_launched_at_once_do_not_meet` |
//! | L3 a launcher keeps signals to itself | `a_rank_that_ignores_sigterm_is_gone_after_the_grace`, `signals_are_passed_on_and_become_the_exit_code` of `burn-nccl`'s `launch` |
//! | L4 a dead launcher leaves processes | `killing_the_launcher_leaves_neither_ranks_nor_what_they_started` of `burn-nccl`'s `launch` |
//! | L7 a wrong address hangs in silence | `l7_an_address_where_nobody_listens_is_named_when_the_time_is_up` |

use std::time::{Duration, Instant};

use burn_nccl::Failure;
use burn_nccl_tests::fault::{Fault, Manner, Place};
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::ERROR_EXIT_CODE;
use burn_nccl_tests::training::{Precision, Training};
use burn_nccl_tests::{Report, Scenario};

use crate::harness::{
    assert_close, hold_free_port, on_this_machine, run, run_command, test_rank, trained, trained_alone,
};

#[test]
fn d8_one_global_batch_gives_one_two_and_four_ranks_the_same_parameters() {
    let train = |ranks: usize| {
        let training = Training::new(Net::Plain, ranks, 5);
        let training = Training { batch_parts: 4 / ranks, precision: Precision::Double, ..training };
        trained(&Scenario::Train(training), ranks).remove(0)
    };
    let [one, two, four] = [1, 2, 4].map(train);
    assert_ne!(one.sha256, one.start_sha256);
    assert_close(&two.parameters, &one.parameters, 1e-11);
    assert_close(&four.parameters, &one.parameters, 1e-11);
}

#[test]
fn d10_two_halves_of_a_job_train_at_the_same_time() {
    let halves = [5, 3].map(|steps| Training::new(Net::Plain, 2, steps));
    let alone = halves.clone().map(|half| trained_alone(&Scenario::Joined(half)));
    assert_ne!(alone[0].sha256, alone[1].sha256);
    let found = trained(&Scenario::Halves(Box::new(burn_nccl_tests::parts::Halves(halves))), 4);
    for (rank, found) in found.iter().enumerate() {
        assert_close(&found.parameters, &alone[rank / 2].parameters, 1e-5);
    }
}

#[test]
fn d10_a_rank_that_dies_ends_its_groups_and_no_other() {
    let ends = run(&Scenario::Outlive, 3, None);
    for end in &ends[..2] {
        let Report::Outlived { failure, sum } = end.report() else { panic!("{ends:#?}") };
        assert!(matches!(failure, Some(Failure::PeerLost { rank: 2, .. })), "{failure:?}");
        assert_eq!(sum, 1 + 2);
    }
}

#[test]
fn d11_a_panic_in_the_backward_pass_ends_the_others_within_two_seconds() {
    let fault = Some(Fault { rank: 1, step: 2, place: Place::Backward, manner: Manner::Panic });
    let ends = run(&Scenario::Train(Training { fault, ..Training::new(Net::Plain, 2, 5) }), 2, None);
    assert!(matches!(ends[0].failed().failure, Some(Failure::Aborted { rank: 1, .. })), "{ends:#?}");
    let late = ends[0].at.saturating_duration_since(ends[1].at);
    assert!(late < on_this_machine(Duration::from_secs(2)), "{late:?}");
}

#[test]
fn d15_a_timeout_of_one_second_says_what_waited_for_whom_and_what_came_before() {
    let fault = Some(Fault { rank: 1, step: 2, place: Place::Backward, manner: Manner::Stop });
    let stopped = Training { fault, timeout_seconds: 1, ..Training::new(Net::Plain, 2, 5) };
    let ends = run(&Scenario::Train(stopped), 2, Some(1));
    let error = ends[0].failed();
    assert!(error.text.starts_with("all_reduce #"), "{error:?}");
    assert!(error.text.contains("rank 1 did not arrive within 1.0s"), "{error:?}");
    assert!(error.text.contains("last seen in "), "{error:?}");
}

/// Runs `rank` of 2 with a second for the rendezvous, which the other does not come to; returns its error and the port.
fn abandoned(rank: &str) -> (String, u16) {
    // It listens to nobody, and nobody else is given it.
    let held = hold_free_port();
    let port = held.local_addr().unwrap().as_socket().expect("an IPv4 address").port();
    let mut command = test_rank(&Scenario::Join(1));
    command.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", "2").env("LOCAL_WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    let start = Instant::now();
    let end = run_command(command);
    assert_eq!(end.status.code(), Some(ERROR_EXIT_CODE), "{end:#?}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    (end.failed().text, port)
}

#[test]
fn d6_a_rank_that_never_joins_is_named_when_the_time_is_up() {
    let (text, port) = abandoned("0");
    assert!(text.starts_with(&format!("rank 1 of 2 did not join 127.0.0.1:{port} within ")), "{text}");
}

#[test]
fn l7_an_address_where_nobody_listens_is_named_when_the_time_is_up() {
    let (text, port) = abandoned("1");
    assert!(text.starts_with("rank 1 could not connect to "), "{text}");
    assert!(text.contains(&format!("at 127.0.0.1:{port} within ")), "{text}");
    assert!(text.contains("MASTER_ADDR"), "{text}");
}
