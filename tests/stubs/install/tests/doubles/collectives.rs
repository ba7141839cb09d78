//! The collectives between threads, against formulas.

use half::{bf16, f16};
use stubs::Config;

use crate::libraries::{Doubles, ranks};

/// NCCL's codes.
const I32: i32 = 2;
const F16: i32 = 6;
const F32: i32 = 7;
const F64: i32 = 8;
const BF16: i32 = 9;

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What three ranks get of an all-reduce of one element.
fn reduced<const N: usize>(dtype: i32, op: i32, values: [[u8; N]; 3]) -> Vec<Vec<u8>> {
    let doubles = Doubles::new(&Config::default());
    let results = ranks(&doubles, 3, |rank, communicator| {
        let (stream, memory) = (doubles.stream(1), doubles.with(&values[rank as usize]));
        assert_eq!(doubles.all_reduce((memory, memory, 1, dtype, op), communicator, stream), 0);
        assert_eq!(doubles.synchronize(stream), 0);
        doubles.bytes(memory, N)
    });
    assert_eq!(doubles.faults(), [""; 0]);
    results
}

#[test]
fn every_reduction_of_every_kind_of_number_is_right() {
    let integers = [7_i32, -3, 5].map(i32::to_le_bytes);
    for (op, expected) in [(0, 9), (1, -105), (2, 7), (3, -3), (4, 3)] {
        assert_eq!(reduced(I32, op, integers), vec![i32::to_le_bytes(expected); 3], "reduction {op}");
    }
    let doubles = [0.5_f64, 2.0, -4.0].map(f64::to_le_bytes);
    for (op, expected) in [(0, -1.5), (1, -4.0), (2, 2.0), (3, -4.0), (4, -0.5)] {
        assert_eq!(reduced(F64, op, doubles), vec![f64::to_le_bytes(expected); 3], "reduction {op}");
    }
    // 2048 + 1 is 2048 in f16: one rounding at the end gives 2050, one at each step 2048.
    let halves = [2048.0, 1.0, 1.0].map(|value| f16::from_f32(value).to_le_bytes());
    assert_eq!(reduced(F16, 0, halves), vec![f16::from_f32(2050.0).to_le_bytes(); 3]);
    let brains = [256.0, 1.0, 1.0].map(|value| bf16::from_f32(value).to_le_bytes());
    assert_eq!(reduced(BF16, 0, brains), vec![bf16::from_f32(258.0).to_le_bytes(); 3]);
}

#[test]
fn the_other_collectives_give_each_rank_its_part() {
    let doubles = Doubles::new(&Config::default());
    ranks(&doubles, 3, |rank, communicator| {
        let stream = doubles.stream(1);
        let own = rank as f32;
        // Rank 1 brings [1, 10].
        let (memory, all) = (doubles.with(&f32s(&[own, own * 10.0])), doubles.allocate(24).unwrap());
        assert_eq!(doubles.all_gather((memory, all, 2, F32), communicator, stream), 0);
        assert_eq!(doubles.broadcast((memory, memory, 2, F32, 1), communicator, stream), 0);
        assert_eq!(doubles.synchronize(stream), 0);
        assert_eq!(doubles.bytes(all, 24), f32s(&[0.0, 0.0, 1.0, 10.0, 2.0, 20.0]));
        assert_eq!(doubles.bytes(memory, 8), f32s(&[1.0, 10.0]));
        // Element i of rank r is r + 10 i: over the ranks 3 + 30 i, and each keeps its own.
        let scattered: Vec<f32> = (0..3).map(|i| own + 10.0 * i as f32).collect();
        let (from, to) = (doubles.with(&f32s(&scattered)), doubles.allocate(4).unwrap());
        assert_eq!(doubles.reduce_scatter((from, to, 1, F32, 0), communicator, stream), 0);
        assert_eq!(doubles.synchronize(stream), 0);
        assert_eq!(doubles.bytes(to, 4), f32s(&[3.0 + 30.0 * own]));
    });
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn a_group_of_sends_and_receives_goes_round_the_ring() {
    let doubles = Doubles::new(&Config::default());
    ranks(&doubles, 3, |rank, communicator| {
        let (stream, from, to) =
            (doubles.stream(1), doubles.with(&f32s(&[rank as f32])), doubles.allocate(4).unwrap());
        assert_eq!(doubles.group_start(), 0);
        assert_eq!(doubles.send((from, 1, F32, (rank + 1) % 3), communicator, stream), 0);
        assert_eq!(doubles.receive((to, 1, F32, (rank + 2) % 3), communicator, stream), 0);
        assert_eq!(doubles.group_end(), 0);
        assert_eq!(doubles.synchronize(stream), 0);
        assert_eq!(doubles.bytes(to, 4), f32s(&[((rank + 2) % 3) as f32]));
    });
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn an_operation_reads_its_input_when_its_stream_comes_to_it() {
    let doubles = Doubles::new(&Config::default());
    ranks(&doubles, 2, |_, communicator| {
        let (stream, memory) = (doubles.stream(1), doubles.with(&f32s(&[1.0])));
        // Two of them one after the other, in place: the second reads what the first wrote.
        for _ in 0..2 {
            assert_eq!(doubles.all_reduce((memory, memory, 1, F32, 0), communicator, stream), 0);
        }
        assert_eq!(doubles.synchronize(stream), 0);
        assert_eq!(doubles.bytes(memory, 4), f32s(&[4.0]));
    });
    assert_eq!(doubles.faults(), [""; 0]);
}
