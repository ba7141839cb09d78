//! What is refused before anything is sent.

use burn_nccl::transport::TransportKind;
use burn_nccl::{DType, Error, ProcessGroup, ReduceOp};

use crate::on_ranks;

/// Asserts that each call is refused as it should be, and that the group still works.
fn refused(body: impl Fn(&ProcessGroup) + Sync) {
    on_ranks(TransportKind::Auto, 2, |group| {
        body(&group);
        group.barrier().unwrap();
    });
}

#[test]
fn a_buffer_that_holds_no_whole_elements_or_no_whole_parts_is_refused() {
    refused(|group| {
        let error = group.all_reduce(&mut [0; 7], DType::F32, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::BufferLength { found: 7, .. }));
        assert_eq!(
            error.to_string(),
            "all_reduce: the data buffer has 7 bytes, expected a multiple of 4 for f32"
        );
        let recv = group.all_gather(&[0; 4], &mut [0; 4], DType::U8).unwrap_err();
        assert!(matches!(recv, Error::BufferLength { buffer: "recv", found: 4, .. }));
        let send = group.reduce_scatter(&[0; 9], &mut [0; 4], DType::U8, ReduceOp::Sum).unwrap_err();
        assert!(matches!(send, Error::BufferLength { buffer: "send", found: 9, .. }));
        let recv = group.all_to_all(&[0; 8], &mut [0; 4], DType::U8).unwrap_err();
        assert!(matches!(recv, Error::BufferLength { buffer: "recv", found: 4, .. }));
        let send = group.all_to_all(&[0; 6], &mut [0; 6], DType::I32).unwrap_err();
        assert!(matches!(send, Error::BufferLength { buffer: "send", found: 6, .. }));
        let message = group.send(&[0; 3], DType::BF16, 1 - group.rank()).unwrap_err();
        assert!(matches!(message, Error::BufferLength { found: 3, .. }));
    });
}

#[test]
fn a_mean_of_integers_is_refused() {
    refused(|group| {
        let mean = group.all_reduce(&mut [0; 8], DType::I64, ReduceOp::Mean).unwrap_err();
        assert!(matches!(mean, Error::UnsupportedReduction { .. }));
        let mean = group.all_reduce_async(vec![0; 8], DType::I64, ReduceOp::Mean).wait().unwrap_err();
        assert!(matches!(mean, Error::UnsupportedReduction { .. }));
        let mean = group.reduce_scatter(&[0; 8], &mut [0; 4], DType::U8, ReduceOp::Mean).unwrap_err();
        assert!(matches!(mean, Error::UnsupportedReduction { .. }));
    });
}

#[test]
fn a_root_or_a_peer_that_is_no_other_rank_is_refused() {
    refused(|group| {
        let root = group.broadcast(&mut [0; 8], DType::U8, 2).unwrap_err();
        assert!(matches!(root, Error::Root { root: 2, world_size: 2, .. }));
        let root = group.scatter(None, &mut [0; 8], DType::U8, usize::MAX).unwrap_err();
        assert!(matches!(root, Error::Root { .. }));
        let peer = group.recv(&mut [0; 8], DType::U8, 2).unwrap_err();
        assert!(matches!(peer, Error::Root { root: 2, .. }));
        let own = group.send(&[0; 8], DType::U8, group.rank()).unwrap_err();
        assert!(matches!(own, Error::MessageToSelf { call: "send", .. }), "{own}");
    });
}

#[test]
fn the_roots_buffer_is_refused_on_other_ranks_and_missed_on_the_root() {
    refused(|group| {
        let is_root = group.rank() == 1;
        let mut recv = [0; 8];
        let wrong = (!is_root).then_some(&mut recv[..]);
        let error = group.gather(&[0; 4], wrong, DType::U8, 1).unwrap_err();
        assert!(matches!(error, Error::RootBuffer { is_root: found, .. } if found == is_root), "{error}");
        let wrong = (!is_root).then_some(&recv[..]);
        let error = group.scatter(wrong, &mut [0; 4], DType::U8, 1).unwrap_err();
        assert!(matches!(error, Error::RootBuffer { is_root: found, .. } if found == is_root), "{error}");
        let error = group.gather_async(vec![0; 4], None::<Vec<u8>>, DType::U8, group.rank()).wait();
        assert!(matches!(error, Err(Error::RootBuffer { is_root: true, .. })));
    });
}
