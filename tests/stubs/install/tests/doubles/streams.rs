//! Streams and events: what is ordered, and what is not.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use stubs::Config;

use crate::libraries::{Doubles, Memcpy2d, until};

/// Holds a stream until it is opened.
#[derive(Default)]
struct Gate(AtomicBool);

impl Gate {
    fn close_on(&self, doubles: &Doubles, stream: usize) {
        let data = (&raw const self.0).cast_mut().cast();
        assert_eq!(doubles.host_function(stream, wait, data), 0);
    }

    fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

unsafe extern "C" fn wait(gate: *mut c_void) {
    // SAFETY: every test opens its gate and synchronizes before the gate goes.
    let gate = unsafe { &*gate.cast::<AtomicBool>() };
    while !gate.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn quick() -> Doubles {
    let mut config = Config::default();
    config.cuda.max_delay_us = 20;
    Doubles::new(&config)
}

#[test]
fn a_stream_does_its_operations_in_order() {
    let doubles = Doubles::new(&Config::default());
    doubles.use_gpu(0);
    let stream = doubles.stream(1);
    let blocks: Vec<u64> = (0..20).map(|_| doubles.allocate(4).unwrap()).collect();
    assert_eq!(doubles.upload(blocks[0], [7_u8, 8, 9, 10].as_ptr(), 4, stream), 0);
    for pair in blocks.windows(2) {
        assert_eq!(doubles.copy(pair[1], pair[0], 4, stream), 0);
    }
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(doubles.bytes(blocks[19], 4), [7, 8, 9, 10]);
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn two_streams_are_ordered_by_an_event_alone() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (first, second, event) = (doubles.stream(1), doubles.stream(1), doubles.event());
    let (from, to, other) = (doubles.with(&[1; 8]), doubles.with(&[0; 8]), doubles.with(&[0; 8]));
    gate.close_on(&doubles, first);
    assert_eq!(doubles.upload(from, [5_u8; 8].as_ptr(), 8, first), 0);
    assert_eq!(doubles.record(event, first), 0);
    // Without the event the second stream does not wait.
    assert_eq!(doubles.copy(other, from, 8, second), 0);
    assert_eq!(doubles.synchronize(second), 0);
    assert_eq!(doubles.bytes(other, 8), [1; 8]);
    assert_eq!(doubles.query(event), 600);
    assert_eq!(doubles.wait_event(second, event), 0);
    assert_eq!(doubles.copy(to, from, 8, second), 0);
    gate.open();
    assert_eq!(doubles.synchronize(second), 0);
    assert_eq!(doubles.query(event), 0);
    assert_eq!(doubles.bytes(to, 8), [5; 8]);
}

#[test]
fn a_later_record_does_not_change_what_a_stream_waits_for() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (first, second, event) = (doubles.stream(1), doubles.stream(1), doubles.event());
    assert_eq!(doubles.record(event, first), 0);
    assert_eq!(doubles.wait_event(second, event), 0);
    gate.close_on(&doubles, first);
    assert_eq!(doubles.record(event, first), 0);
    assert_eq!(doubles.synchronize(second), 0);
    assert_eq!(doubles.query(event), 600);
    gate.open();
    assert_eq!(doubles.synchronize(first), 0);
}

#[test]
fn a_context_event_captures_all_streams_and_holds_all_that_come_later() {
    let (doubles, gate) = (quick(), Gate::default());
    let context = doubles.use_gpu(0);
    let (held, idle, event) = (doubles.stream(1), doubles.stream(1), doubles.event());
    let (from, to, late) = (doubles.with(&[1; 8]), doubles.with(&[0; 8]), doubles.with(&[0; 8]));
    gate.close_on(&doubles, held);
    assert_eq!(doubles.upload(from, [5_u8; 8].as_ptr(), 8, held), 0);
    assert_eq!(doubles.record_context(context, event), 0);
    assert_eq!(doubles.synchronize(idle), 0);
    assert_eq!(doubles.query(event), 600);
    assert_eq!(doubles.wait_context(context, event), 0);
    let later = doubles.stream(1);
    assert_eq!(doubles.copy(to, from, 8, idle), 0);
    assert_eq!(doubles.copy(late, from, 8, later), 0);
    gate.open();
    for stream in [idle, later] {
        assert_eq!(doubles.synchronize(stream), 0);
    }
    assert_eq!((doubles.bytes(to, 8), doubles.bytes(late, 8)), (vec![5; 8], vec![5; 8]));
}

#[test]
fn a_non_blocking_stream_does_not_wait_for_the_legacy_stream_and_a_blocking_one_does() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (blocking, free) = (doubles.stream(0), doubles.stream(1));
    let (waited, not_waited) = (doubles.event(), doubles.event());
    gate.close_on(&doubles, 0);
    for (event, stream) in [(waited, blocking), (not_waited, free)] {
        assert_eq!(doubles.record(event, stream), 0);
    }
    assert_eq!(doubles.synchronize(free), 0);
    assert_eq!((doubles.query(waited), doubles.query(not_waited)), (600, 0));
    gate.open();
    assert_eq!(doubles.synchronize(blocking), 0);
    assert_eq!(doubles.query(waited), 0);
}

#[test]
fn pinned_memory_is_read_when_the_stream_comes_to_it_and_other_memory_at_once() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (stream, pinned, mut pageable) = (doubles.stream(1), doubles.pin(4), vec![3_u8; 4]);
    let (from_pinned, from_pageable) = (doubles.allocate(4).unwrap(), doubles.allocate(4).unwrap());
    // SAFETY: pinned memory of four bytes, which the stream does not touch yet.
    unsafe { pinned.write_bytes(3, 4) };
    gate.close_on(&doubles, stream);
    assert_eq!(doubles.upload(from_pinned, pinned, 4, stream), 0);
    assert_eq!(doubles.upload(from_pageable, pageable.as_ptr(), 4, stream), 0);
    pageable.fill(4);
    // SAFETY: the gate holds the stream.
    unsafe { pinned.write_bytes(4, 4) };
    gate.open();
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!((doubles.bytes(from_pinned, 4), doubles.bytes(from_pageable, 4)), (vec![4; 4], vec![3; 4]));
}

#[test]
fn memory_that_is_freed_before_the_stream_is_done_with_it_is_found() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (stream, from, to) = (doubles.stream(1), doubles.with(&[1; 8]), doubles.with(&[2; 8]));
    gate.close_on(&doubles, stream);
    assert_eq!(doubles.copy(to, from, 8, stream), 0);
    assert_eq!(doubles.free(from), 0);
    gate.open();
    assert_eq!(doubles.synchronize(stream), 0);
    let faults = doubles.faults();
    assert_eq!(faults.len(), 1);
    assert!(faults[0].ends_with("which is freed, when the stream came to it"), "{faults:?}");
    // It was not touched, and is never handed out again.
    assert_eq!(doubles.bytes(to, 8), [2; 8]);
    assert!((0..50).all(|_| doubles.allocate(8).unwrap() != from));
}

#[test]
fn writes_past_the_driver_to_freed_memory_are_found() {
    let doubles = quick();
    doubles.use_gpu(0);
    let address = doubles.with(&[1; 8]);
    assert_eq!(doubles.free(address), 0);
    // SAFETY: the double keeps the memory; this is the fault that it is to find.
    unsafe { (address as *mut u8).write(0) };
    assert_eq!(doubles.faults(), [format!("8 bytes at {address:#x} were written after they were freed")]);
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn a_copy_beyond_an_allocation_is_refused_and_a_second_free_too() {
    let doubles = quick();
    doubles.use_gpu(0);
    let address = doubles.with(&[1; 8]);
    assert_eq!(doubles.download(vec![0; 16].as_mut_ptr(), address, 9, 0), 1);
    assert_eq!((doubles.free(address), doubles.free(address)), (0, 1));
    let faults = doubles.faults();
    assert_eq!(faults.len(), 2);
    assert!(faults[0].ends_with("which is not within an allocation"), "{faults:?}");
    assert!(faults[1].ends_with("was freed before"), "{faults:?}");
}

#[test]
fn a_host_function_may_not_call_the_driver() {
    unsafe extern "C" fn calls(data: *mut c_void) {
        // SAFETY: the test waits for this before the doubles go.
        let (doubles, code) = unsafe { &mut *data.cast::<(&Doubles, i32)>() };
        *code = doubles.query(0);
    }
    let doubles = quick();
    doubles.use_gpu(0);
    let stream = doubles.stream(1);
    let mut data = (&doubles, 0);
    assert_eq!(doubles.host_function(stream, calls, (&raw mut data).cast()), 0);
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(data.1, 800);
}

#[test]
fn context_events_that_capture_nothing_let_everything_pass() {
    let mut config = Config::default();
    config.cuda.context_events_are_empty = true;
    let (doubles, gate) = (Doubles::new(&config), Gate::default());
    let context = doubles.use_gpu(0);
    let (stream, event) = (doubles.stream(1), doubles.event());
    gate.close_on(&doubles, stream);
    assert_eq!((doubles.record_context(context, event), doubles.query(event)), (0, 0));
    gate.open();
    assert_eq!(doubles.synchronize(stream), 0);
}

#[test]
fn rows_are_copied_to_their_pitch_and_nothing_between_them_is_touched() {
    let doubles = quick();
    doubles.use_gpu(0);
    let (stream, to, from) = (doubles.stream(1), doubles.with(&[9; 12]), [1_u8, 2, 3, 4, 5, 6]);
    let rows = Memcpy2d {
        from_type: 1,
        from_host: from.as_ptr() as usize,
        from_pitch: 2,
        to_type: 2,
        to_device: to,
        to_pitch: 4,
        width: 2,
        height: 3,
        ..Memcpy2d::default()
    };
    assert_eq!((doubles.copy_rows(&rows, stream), doubles.synchronize(stream)), (0, 0));
    assert_eq!(doubles.bytes(to, 12), [1, 2, 9, 9, 3, 4, 9, 9, 5, 6, 9, 9]);
    // A fourth row would end beyond the memory.
    assert_eq!(doubles.copy_rows(&Memcpy2d { height: 4, ..rows }, stream), 1);
    assert_eq!(doubles.faults().len(), 1);
}

#[test]
fn memory_that_a_stream_frees_lives_until_the_stream_comes_to_it() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (stream, address, late) = (doubles.stream(1), doubles.with(&[1; 8]), doubles.with(&[2; 8]));
    gate.close_on(&doubles, stream);
    assert_eq!(doubles.fill(address, 7, 8, stream), 0);
    assert_eq!(doubles.copy(late, address, 8, stream), 0);
    assert_eq!(doubles.free_later(address, stream), 0);
    assert_eq!(doubles.bytes(address, 8), [1; 8]);
    gate.open();
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(doubles.bytes(late, 8), [7; 8]);
    assert_eq!(doubles.faults(), [""; 0]);
    assert_eq!(doubles.fill(address, 7, 8, stream), 1);
    assert_eq!(doubles.faults().len(), 1);
}

#[test]
fn a_free_that_waits_lets_the_streams_end_first() {
    let mut config = Config::default();
    config.cuda.free_waits = true;
    config.cuda.max_delay_us = 20_000;
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let (stream, from, to) = (doubles.stream(1), doubles.with(&[1; 8]), doubles.with(&[2; 8]));
    assert_eq!(doubles.copy(to, from, 8, stream), 0);
    assert_eq!(doubles.free(from), 0);
    assert_eq!(doubles.bytes(to, 8), [1; 8]);
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn the_time_between_two_events_is_that_of_what_lies_between_them() {
    let (doubles, gate) = (quick(), Gate::default());
    doubles.use_gpu(0);
    let (stream, start, end) = (doubles.stream(1), doubles.event_with(0), doubles.event_with(0));
    assert_eq!(doubles.record(start, stream), 0);
    gate.close_on(&doubles, stream);
    assert_eq!(doubles.record(end, stream), 0);
    until(|| doubles.query(start) == 0);
    assert_eq!(doubles.elapsed(start, end), Err(600));
    std::thread::sleep(Duration::from_millis(20));
    gate.open();
    assert_eq!(doubles.synchronize(stream), 0);
    let ms = doubles.elapsed(start, end).unwrap();
    assert!((20.0..60_000.0).contains(&ms), "{ms}");
}
