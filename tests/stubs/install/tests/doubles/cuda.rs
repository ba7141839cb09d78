//! The driver: codes, contexts, memory.

use stubs::{Config, Injection};

use crate::libraries::Doubles;

#[test]
fn what_needs_a_context_is_refused_without_one() {
    let doubles = Doubles::new(&Config::default());
    assert_eq!(doubles.allocate(16), Err(201));
    doubles.use_gpu(0);
    assert!(doubles.allocate(16).is_ok());
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(doubles.allocate(16), Err(201))).join().unwrap());
    assert_eq!(doubles.error_name(201), "CUDA_ERROR_INVALID_CONTEXT");
}

#[test]
fn memory_ends_at_the_capacity_of_the_gpu() {
    let mut config = Config::default();
    config.cuda.devices[0].memory_bytes = 1000;
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let first = doubles.allocate(600).unwrap();
    assert_eq!(doubles.allocate(600), Err(2));
    assert_eq!(doubles.free(first), 0);
    assert!(doubles.allocate(600).is_ok());
}

#[test]
fn a_call_fails_as_it_is_told_and_the_next_one_does_not() {
    let mut config = Config::default();
    config.cuda.injections =
        vec![Injection::new("cuMemAlloc_v2", 2, 2), Injection::new("cuStreamSynchronize", 0, 719)];
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let allocated: Vec<_> = (0..3).map(|_| doubles.allocate(16).err()).collect();
    assert_eq!(allocated, [None, Some(2), None]);
    let stream = doubles.stream(1);
    assert_eq!([doubles.synchronize(stream), doubles.synchronize(stream)], [719, 719]);
}

#[test]
fn an_injection_counts_the_calls_of_its_gpu_alone() {
    let mut config = Config::default();
    config.cuda.injections = vec![Injection::new("cuMemAlloc_v2", 1, 2).of(1)];
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    assert!(doubles.allocate(16).is_ok());
    doubles.use_gpu(1);
    assert_eq!(doubles.allocate(16), Err(2));
}

#[test]
fn a_missing_function_is_not_there_and_the_others_are() {
    let mut config = Config::default();
    config.cuda.missing = vec!["cuCtxRecordEvent".into(), "cuCtxWaitEvent".into()];
    let doubles = Doubles::new(&config);
    let known = ["cuCtxRecordEvent", "cuCtxWaitEvent", "cuEventRecord", "cuStreamWaitEvent"]
        .map(|name| doubles.has_cuda(name));
    assert_eq!(known, [false, false, true, true]);
}

#[test]
fn a_function_that_was_never_there_cannot_be_taken_out() {
    let mut config = Config::default();
    config.cuda.missing = vec!["cuNoSuchFunction".into()];
    let error = stubs::Stubs::install(&config).unwrap_err();
    assert_eq!(error.to_string(), "libstub_cuda.so has no function cuNoSuchFunction that could be taken out");
}

#[test]
fn two_instances_know_nothing_of_each_other() {
    let (one, other) = (Doubles::new(&Config::default()), Doubles::new(&Config::default()));
    one.use_gpu(0);
    assert_eq!(other.allocate(16), Err(201));
    assert_eq!(one.free(16), 1);
    assert_eq!((one.faults().len(), other.faults().len()), (1, 0));
}
