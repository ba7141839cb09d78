//! Which GPU a rank takes.

use super::Gpu;
use crate::DeviceError;

/// The CUDA ordinal of a rank: its local rank, or 0 where each rank of the machine was started with one GPU of its own.
///
/// `visible` is how many GPUs CUDA shows this process, and `filter` the value of `CUDA_VISIBLE_DEVICES`. Several ranks with
/// one GPU each look the same as several ranks that were given one GPU together; NCCL's set-up, which compares places on the
/// bus, refuses the latter on all ranks ([`DeviceError::SharedGpu`]).
///
/// # Errors
///
/// [`DeviceError::NoSuchGpu`] where the machine has more ranks than GPUs: the same on all of its ranks, those too whose own
/// GPU is there.
pub fn ordinal_of_rank(
    local_rank: usize,
    local_world_size: usize,
    visible: usize,
    filter: Option<&str>,
) -> Result<usize, DeviceError> {
    if visible == 1 && local_world_size > 1 && filter.is_some() {
        return Ok(0);
    }
    let ranks = local_world_size.max(local_rank + 1);
    if ranks > visible {
        return Err(no_such_gpu(visible, visible, filter));
    }
    Ok(local_rank)
}

/// The GPU that `ordinal` names.
///
/// # Errors
///
/// [`DeviceError::NoSuchGpu`].
pub fn existing_ordinal(ordinal: usize, visible: usize, filter: Option<&str>) -> Result<usize, DeviceError> {
    if ordinal < visible { Ok(ordinal) } else { Err(no_such_gpu(ordinal, visible, filter)) }
}

fn no_such_gpu(ordinal: usize, visible: usize, filter: Option<&str>) -> DeviceError {
    DeviceError::NoSuchGpu { ordinal, visible, filter: filter.map(str::to_owned) }
}

/// The ordinals of the GPUs that are open to this process ([`Gpu::is_open`]), the freest first: by free memory, then by
/// utilisation, then by ordinal.
///
/// Those whose memory is not known come last. It is a function of the list alone, so ranks that see the same list agree.
pub fn by_freedom(gpus: &[Gpu]) -> Vec<usize> {
    let open: Vec<Gpu> = gpus.iter().filter(|gpu| gpu.is_open()).cloned().collect();
    ranking(&open)
}

/// The ordinals of all GPUs, the freest first, those that are closed last.
fn ranking(gpus: &[Gpu]) -> Vec<usize> {
    let mut visible: Vec<(usize, &Gpu)> =
        gpus.iter().filter_map(|gpu| gpu.ordinal.map(|ordinal| (ordinal, gpu))).collect();
    visible.sort_by_key(|(ordinal, gpu)| {
        let used = gpu.memory.map_or(u64::MAX, |memory| u64::MAX - memory.free_bytes);
        (!gpu.is_open(), used, gpu.utilization_percent.unwrap_or(u32::MAX), *ordinal)
    });
    visible.into_iter().map(|(ordinal, _)| ordinal).collect()
}

/// The ordinals of the `count` freest GPUs, one for each rank of a machine.
///
/// Those that are closed ([`Gpu::is_open`]) come last: others of these ranks may have begun to compute on them already.
///
/// # Errors
///
/// [`DeviceError::NoSuchGpu`] where there are fewer.
pub fn freest(gpus: &[Gpu], count: usize, filter: Option<&str>) -> Result<Vec<usize>, DeviceError> {
    let mut ordinals = ranking(gpus);
    if count > ordinals.len() {
        return Err(no_such_gpu(ordinals.len(), ordinals.len(), filter));
    }
    ordinals.truncate(count);
    Ok(ordinals)
}

/// For a process that is alone on its machine and may take any GPU: the first, unless others hold it, or it is closed, and
/// another is idle; then the freest of the idle ones.
///
/// The first where there is no reason against it, so that programs which are started the same way compute on the same GPU.
/// `None` where no GPU is visible.
pub fn first_unless_held(gpus: &[Gpu]) -> Option<usize> {
    let is_idle = |gpu: &Gpu| !gpu.is_held() && gpu.is_open();
    let first = gpus.iter().filter(|gpu| gpu.ordinal.is_some()).min_by_key(|gpu| gpu.ordinal)?;
    if is_idle(first) {
        return first.ordinal;
    }
    let idle: Vec<Gpu> = gpus.iter().filter(|gpu| is_idle(gpu)).cloned().collect();
    by_freedom(&idle).first().copied().or(first.ordinal)
}

#[cfg(test)]
mod tests {
    use super::super::{ComputeMode, GpuMemory, Holder};
    use super::*;

    fn gpu(ordinal: usize, free_gib: u64) -> Gpu {
        let memory = GpuMemory {
            total_bytes: 80 << 30,
            used_bytes: (80 - free_gib) << 30,
            free_bytes: free_gib << 30,
        };
        Gpu { ordinal: Some(ordinal), memory: Some(memory), utilization_percent: Some(0), ..Gpu::default() }
    }

    fn held(gpu: Gpu) -> Gpu {
        Gpu { holders: vec![Holder { pid: 1, name: None, memory_bytes: None }], ..gpu }
    }

    #[test]
    fn a_rank_has_the_ordinal_of_its_local_rank_or_the_only_one_it_was_given() {
        let cases = [
            ((0, 1, 1, None), Ok(0)),
            ((0, 1, 8, None), Ok(0)),
            ((3, 4, 4, None), Ok(3)),
            ((1, 2, 8, Some("4,5")), Ok(1)),
            ((3, 4, 1, Some("3")), Ok(0)),
            // The same on the rank whose GPU is there and on the one whose is not.
            ((0, 2, 1, None), Err((1, 1))),
            ((1, 2, 1, None), Err((1, 1))),
            ((0, 4, 2, Some("0,1")), Err((2, 2))),
            ((3, 4, 2, Some("0,1")), Err((2, 2))),
            ((0, 1, 0, Some("")), Err((0, 0))),
        ];
        for ((local_rank, ranks, visible, filter), expected) in cases {
            let expected = expected.map_err(|(ordinal, visible)| DeviceError::NoSuchGpu {
                ordinal,
                visible,
                filter: filter.map(str::to_owned),
            });
            let found = ordinal_of_rank(local_rank, ranks, visible, filter);
            assert_eq!(found, expected, "rank {local_rank} of {ranks}, {visible} visible, {filter:?}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused_with_the_filter_that_hides_it() {
        assert_eq!(existing_ordinal(1, 2, None), Ok(1));
        let error = existing_ordinal(2, 1, Some("0")).unwrap_err().to_string();
        assert!(error.contains("GPU 2") && error.contains("CUDA_VISIBLE_DEVICES=0"), "{error}");
    }

    #[test]
    fn the_freest_gpu_has_the_most_free_memory_then_the_least_work_then_the_lowest_number() {
        let busy = |gpu: Gpu, percent| Gpu { utilization_percent: Some(percent), ..gpu };
        let gpus = [
            busy(gpu(0, 40), 0),
            busy(gpu(1, 79), 90),
            busy(gpu(2, 79), 10),
            busy(gpu(3, 79), 10),
            Gpu { memory: None, ..gpu(4, 80) },
            Gpu { ordinal: None, ..gpu(9, 80) },
            Gpu { compute_mode: ComputeMode::Exclusive, ..held(gpu(5, 80)) },
        ];
        assert_eq!(by_freedom(&gpus), [2, 3, 1, 0, 4]);
        assert_eq!(freest(&gpus, 3, None), Ok(vec![2, 3, 1]));
        assert_eq!(freest(&gpus, 6, None), Ok(vec![2, 3, 1, 0, 4, 5]));
        let error = freest(&gpus, 7, None).unwrap_err();
        assert_eq!(error, DeviceError::NoSuchGpu { ordinal: 6, visible: 6, filter: None });
        // What order the machine lists them in does not matter.
        let mut reversed = gpus.to_vec();
        reversed.reverse();
        assert_eq!(by_freedom(&reversed), by_freedom(&gpus));
    }

    #[test]
    fn a_gpu_that_is_closed_is_not_one_to_take() {
        let prohibited = Gpu { compute_mode: ComputeMode::Prohibited, ..gpu(0, 80) };
        let exclusive = |gpu| Gpu { compute_mode: ComputeMode::Exclusive, ..gpu };
        let gpus = [prohibited, exclusive(held(gpu(1, 80))), exclusive(gpu(2, 10)), held(gpu(3, 20))];
        assert_eq!(by_freedom(&gpus), [3, 2]);
        assert_eq!(by_freedom(&gpus[..2]), [0; 0]);
    }

    #[test]
    fn the_first_gpu_is_taken_unless_it_is_held_and_another_is_idle() {
        assert_eq!(first_unless_held(&[]), None);
        assert_eq!(first_unless_held(&[gpu(1, 79), gpu(0, 80)]), Some(0));
        // A little memory in use, as by a desktop, is no reason.
        assert_eq!(first_unless_held(&[gpu(0, 79), gpu(1, 80)]), Some(0));
        assert_eq!(first_unless_held(&[held(gpu(0, 60)), gpu(1, 79), gpu(2, 80)]), Some(2));
        assert_eq!(first_unless_held(&[held(gpu(0, 60)), held(gpu(1, 70))]), Some(0));
        let closed = Gpu { compute_mode: ComputeMode::Prohibited, ..gpu(0, 80) };
        assert_eq!(first_unless_held(&[closed, gpu(1, 80)]), Some(1));
    }
}
