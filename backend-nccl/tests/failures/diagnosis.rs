//! What a failure tells: which calls, where in the program, and how the other ranks stood.

use std::time::Duration;

use burn_nccl::group::{RankStatus, State};
use burn_nccl::transport::TransportKind;
use burn_nccl::{DType, Error, Failure, GroupOptions, ProcessGroup, ReduceOp, Work};

use super::{failure, local, on_ranks, options, sum};

const LIMIT: Duration = Duration::from_millis(600);

/// Only what travels over TCP carries checksums.
fn tcp() -> GroupOptions {
    options().with_transport(TransportKind::Tcp)
}

/// `file:line:` of a line of this file.
fn at(line: u32) -> String {
    format!("{}:{line}:", file!())
}

/// A call that the watchdog ends, and the line that made it.
fn late(group: &ProcessGroup) -> (Error, u32) {
    (group.barrier().unwrap_err(), line!())
}

#[test]
fn a_mismatch_names_the_lines_of_both_ranks_on_every_rank() {
    for check in [true, false] {
        let errors = on_ranks(local(3, options().with_check(check)), |group| {
            let (result, line) = if group.rank() == 1 {
                (group.barrier(), line!())
            } else {
                (group.all_reduce(&mut [0; 400], DType::F32, ReduceOp::Sum), line!())
            };
            (result.unwrap_err(), line, group)
        });
        let lines = [at(errors[0].1), at(errors[1].1)];
        for (error, ..) in &errors {
            let text = error.to_string();
            assert!(matches!(failure(error), Failure::Mismatch { .. }), "{text}");
            for part in [
                "all_reduce #1 (sum of 400 bytes of f32), 100 elements, at ",
                "barrier #1 at ",
                "rank 1 called",
                &lines[0],
                &lines[1],
            ] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
    }
}

#[test]
fn messages_that_do_not_fit_name_the_lines_of_both_ranks() {
    let errors = on_ranks(local(3, options()), |group| {
        let (result, line) = match group.rank() {
            0 => (group.send(&[0; 8], DType::F32, 1), line!()),
            1 => (group.recv(&mut [0; 4], DType::F32, 0), line!()),
            _ => (group.barrier(), line!()),
        };
        let result = result.and_then(|()| group.barrier());
        (result.unwrap_err(), line, group)
    });
    for (error, ..) in &errors {
        let text = error.to_string();
        assert!(matches!(failure(error), Failure::Mismatch { rank: 1, peer: 0, .. }), "{text}");
        assert!(text.contains(&at(errors[0].1)) && text.contains(&at(errors[1].1)), "{text}");
    }
}

#[test]
fn a_rank_that_computes_past_the_deadline_answers_what_it_did_last() {
    let groups = local(4, options().with_timeout(LIMIT));
    let ranks = on_ranks(groups, |group| {
        sum(&group, 10).unwrap();
        if group.rank() == 2 {
            // Long enough that it still computes when it is asked, and it answers all the same.
            std::thread::sleep(LIMIT * 2);
        }
        let (error, line) = late(&group);
        (error, line, group)
    });
    for (error, ..) in &ranks {
        let Failure::Deadline { missing, last, limit } = failure(error) else { panic!("{error}") };
        assert_eq!((missing.as_slice(), *limit), ([2].as_slice(), LIMIT), "{error}");
        assert_eq!(last[0].map(|signature| signature.sequence), Some(1), "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 2 did not arrive within 600.0ms (last seen in all_reduce #1"), "{text}");
    }
    let record = ranks[0].2.flight_record();
    let lines: Vec<String> = record.ranks.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 4, "{record:?}");
    assert!(
        lines[2].starts_with(
            "rank 2: no collective pending; last finished all_reduce #1 (sum of 40 bytes of f32)"
        ),
        "{lines:#?}"
    );
    for rank in [0, 1, 3] {
        let start = format!("rank {rank}: in barrier #2 called at {}", at(ranks[0].1));
        assert!(lines[rank].starts_with(&start), "{start} is not in {lines:#?}");
    }
}

#[test]
fn the_record_has_every_operation_with_its_line_its_times_and_its_state() {
    let records = on_ranks(local(2, options()), |group| {
        let line = line!() + 1;
        group.all_reduce(&mut [1; 12], DType::I32, ReduceOp::Max).unwrap();
        let work: Work<Vec<u8>> = group.broadcast_async(vec![1; 5], DType::U8, 1);
        work.wait().unwrap();
        let (to, from) = (1 - group.rank(), 1 - group.rank());
        group.send_recv(&[0; 4], to, &mut [0; 4], from, DType::F32).unwrap();
        group.all_gather_bytes(&[7; 3]).unwrap();
        assert_eq!(group.flight_record().transport, group.transport_name());
        (group.flight_record(), line)
    });
    for (rank, (record, line)) in records.iter().enumerate() {
        assert_eq!((record.rank, record.world_size, record.group.as_str()), (rank, 2, "world"));
        assert_eq!(record.failure, None);
        let kinds: Vec<String> = record.operations.iter().map(|it| it.signature.to_string()).collect();
        assert_eq!(
            kinds,
            [
                "all_reduce #1 (max of 12 bytes of i32)".to_owned(),
                "broadcast #2 (5 bytes of u8 from rank 1)".to_owned(),
                format!("message #2 (8 bytes of f32 from rank {rank})"),
                "all_gather #3 (8 bytes of u8)".to_owned(),
                "all_gather #4 (3 bytes of u8)".to_owned(),
            ]
        );
        assert_eq!((record.operations[2].to, record.operations[2].from), (Some(1 - rank), Some(1 - rank)));
        assert_eq!(record.total_operations, 5);
        for (index, operation) in record.operations.iter().enumerate() {
            let line = line + [0, 1, 4, 5, 5][index];
            assert!(operation.called_at.starts_with(&at(line)), "{operation:?} is not of line {line}");
            assert_eq!(operation.state, State::Done);
            let (started, ended) = (operation.started_at.unwrap(), operation.ended_at.unwrap());
            assert!(operation.enqueued_at <= started && started <= ended, "{operation:?}");
        }
    }
}

#[test]
fn parts_of_a_group_have_names_and_records_of_their_own() {
    let names = on_ranks(local(3, options()), |group| {
        let part = group.split(Some(u32::from(group.rank() == 2)), 0).unwrap().unwrap();
        part.barrier().unwrap();
        if group.rank() < 2 {
            part.abort("the test says so");
            let text = part.barrier().unwrap_err().to_string();
            assert!(
                text.starts_with("barrier #2 failed on rank ")
                    && text.contains(" of 2 of group `world.0-0` after"),
                "{text}"
            );
        }
        let record = part.flight_record();
        assert_eq!((record.group.as_str(), record.operations.len()), (part.name(), part.world_size()));
        assert!(group.flight_record().operations.iter().all(|it| it.signature.to_string() != "barrier #1"));
        (part.name().to_owned(), record.file_name())
    });
    let name = |name: &str, file: &str| (name.to_owned(), file.to_owned());
    assert_eq!(
        names,
        [
            name("world.0-0", "flight-world.0-0-rank-0.json"),
            name("world.0-0", "flight-world.0-0-rank-1.json"),
            name("world.0-1", "flight-world.0-1-rank-0.json"),
        ]
    );
}

#[test]
fn payloads_with_checksums_arrive_as_they_were_sent_at_every_boundary() {
    const CHUNK: usize = 256 * 1024;
    for world_size in [2, 3] {
        on_ranks(local(world_size, tcp().with_checksums(true)), |group| {
            for length in [0, 1, 3, 16 * 1024, 16 * 1024 + 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5] {
                let value = |rank: usize, at: usize| ((rank * 7 + at) % 50) as u8;
                let of = |rank: usize| -> Vec<u8> { (0..length).map(|at| value(rank, at)).collect() };
                let mut summed = of(group.rank());
                group.all_reduce(&mut summed, DType::U8, ReduceOp::Sum).unwrap();
                let expected = |at| (0..world_size).map(|rank| value(rank, at)).sum::<u8>();
                assert!(summed.iter().enumerate().all(|(at, found)| *found == expected(at)), "{length}");
                let mut gathered = vec![0; length * world_size];
                group.all_gather(&of(group.rank()), &mut gathered, DType::U8).unwrap();
                assert!(gathered == (0..world_size).flat_map(of).collect::<Vec<u8>>(), "{length}");
                let mut buffer = of(group.rank());
                group.broadcast(&mut buffer, DType::U8, 1).unwrap();
                assert!(buffer == of(1), "{length}");
            }
        });
    }
}

#[test]
fn ranks_that_differ_in_checksums_are_told_so() {
    let mut options = [tcp(), tcp().with_checksums(true)].into_iter();
    let port = super::free_port();
    let errors = std::thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                let options = options.next().unwrap();
                scope.spawn(move || {
                    let group =
                        ProcessGroup::connect(&super::environment(rank, 2, port, "job"), options).unwrap();
                    (sum(&group, 10).unwrap_err(), group)
                })
            })
            .map(|rank| rank.join().unwrap())
    });
    for (error, _) in errors {
        assert!(error.to_string().contains("give all ranks the same options"), "{error}");
    }
}

/// A status is plain data for whoever reads records.
#[test]
fn a_status_reads_back_from_json() {
    let status = RankStatus { rank: 1, answer: None };
    let json = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<RankStatus>(&json).unwrap(), status);
}

/// What checksums cost: medians of pairwise ratios, two ranks in this process.
/// `cargo test --test failures checksums_cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn checksums_cost() {
    let run = |group: &ProcessGroup, buffer: &mut [u8]| {
        let start = std::time::Instant::now();
        group.all_reduce(buffer, DType::F32, ReduceOp::Sum).unwrap();
        start.elapsed().as_secs_f64()
    };
    let pair = |checksums| local(2, tcp().with_check(false).with_checksums(checksums));
    let groups: Vec<_> = pair(false).into_iter().zip(pair(true)).collect();
    for bytes in [1 << 10, 1 << 16, 26_000_000] {
        let (run, groups) = (&run, &groups);
        let times = std::thread::scope(|scope| {
            let rank = |rank: usize| {
                scope.spawn(move || {
                    let mut buffer = vec![0; bytes];
                    let rounds = if bytes > 1 << 20 { 40 } else { 2000 };
                    let (plain, summed) = &groups[rank];
                    let round = |_| (run(plain, &mut buffer), run(summed, &mut buffer));
                    (0..rounds).map(round).collect::<Vec<_>>()
                })
            };
            let [first, second] = [rank(0), rank(1)];
            second.join().unwrap();
            first.join().unwrap()
        });
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let ratio = median(times.iter().map(|(plain, summed)| summed / plain).collect());
        let plain = median(times.iter().map(|(plain, _)| *plain).collect());
        println!("{bytes} bytes: {:.1} us without, {ratio:.2} times that with checksums", plain * 1e6);
    }
}
