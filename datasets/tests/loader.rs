//! The loader's promises: the same batches with any number of workers, errors in order, no thread left.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::config::Config;
use burn::data::dataloader::{DataLoader, split::split_dataloader};
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use burn_nccl_datasets::{
    Batch, DataError, DataSource, Image, ImageDataset, Loader, LoaderConfig, MemoryDataset, Pipeline,
    Sampling, Split, Transform,
};

/// `n` grey images of one pixel; image i is i everywhere and has label `i % 3`.
fn numbered(n: usize) -> Arc<dyn ImageDataset> {
    let names = ["a", "b", "c"].map(String::from).to_vec();
    let labels = (0..n).map(|i| i % 3).collect();
    Arc::new(MemoryDataset::new((0..n).map(|i| i as u8).collect(), labels, [1, 1, 1], names).unwrap())
}

/// A dataset whose image `bad` does something else.
struct Faulty {
    len: usize,
    bad: usize,
    fault: Fault,
    names: Vec<String>,
}

enum Fault {
    Error,
    Panic,
    OtherShape,
    /// Waits until the test lets go.
    Block(Arc<Mutex<()>>),
}

impl Faulty {
    fn dataset(len: usize, bad: usize, fault: Fault) -> Arc<dyn ImageDataset> {
        Arc::new(Self { len, bad, fault, names: vec!["only".into(), "other".into()] })
    }
}

impl Dataset<Image, DataError> for Faulty {
    fn get(&self, index: usize) -> Result<Image, DataError> {
        let width = if index != self.bad {
            1
        } else {
            match &self.fault {
                Fault::Error => return Err(DataError::NotAFolder { path: "image".into() }),
                Fault::Panic => panic!("image {index} is cursed"),
                Fault::OtherShape => 2,
                Fault::Block(gate) => {
                    drop(gate.lock());
                    1
                }
            }
        };
        Ok(Image { pixels: vec![index as u8; width], channels: 1, height: 1, width, label: 0 })
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl ImageDataset for Faulty {
    fn class_names(&self) -> &[String] {
        &self.names
    }
}

fn init(config: LoaderConfig, data: Arc<dyn ImageDataset>) -> Loader {
    config.init(data, &Device::default()).unwrap()
}

type Content = (Vec<usize>, [usize; 4], Vec<f32>, Vec<i64>);

fn content(batch: &Batch) -> Content {
    let values = batch.images.to_data().convert::<f32>().try_to_vec().unwrap();
    let labels = batch.labels.to_data().convert::<i64>().try_to_vec().unwrap();
    (batch.indices.clone(), batch.images.dims(), values, labels)
}

fn contents(batches: impl Iterator<Item = Result<Batch, DataError>>) -> Vec<Content> {
    batches.map(|batch| content(&batch.unwrap())).collect()
}

fn order(batches: impl Iterator<Item = Result<Batch, DataError>>) -> Vec<usize> {
    batches.flat_map(|batch| batch.unwrap().indices).collect()
}

fn augmented_digits(workers: usize) -> Loader {
    let transforms = DataSource::Digits.train_transforms(16);
    let config = LoaderConfig::new(64)
        .with_workers(workers)
        .with_seed(7)
        .with_shuffle(true)
        .with_drop_last(true)
        .with_transforms(transforms);
    init(config, DataSource::Digits.load(Split::Train).unwrap())
}

#[test]
fn batches_depend_on_the_epoch_and_not_on_the_number_of_workers() {
    let inline = augmented_digits(0);
    let epochs: Vec<_> = (0..3).map(|epoch| contents(inline.epoch(epoch))).collect();
    assert_eq!(epochs[0].len(), 23);
    assert_eq!(epochs[0][0].1, [64, 3, 16, 16]);
    for (i, epoch) in epochs.iter().enumerate() {
        assert!(epochs[i + 1..].iter().all(|other| other[0].0 != epoch[0].0 && other[0].2 != epoch[0].2));
    }
    for workers in [0, 1, 2, 4] {
        let loader = augmented_digits(workers);
        // Asked for out of order: nothing carries over from one epoch to the next.
        for epoch in [2, 0, 1] {
            assert!(contents(loader.epoch(epoch)) == epochs[epoch], "{workers} workers, epoch {epoch}");
        }
    }
}

#[test]
fn an_epoch_that_starts_in_the_middle_gives_the_rest_of_it() {
    for workers in [0, 3] {
        let loader = augmented_digits(workers);
        let whole = contents(loader.epoch(4));
        assert!(contents(loader.iter_from(4, 20)) == whole[20..]);
        assert_eq!(loader.iter_from(4, 20).remaining(), 3);
        assert_eq!(loader.iter_from(4, 23).count() + loader.iter_from(4, 99).count(), 0);
        // The same by the number of images of all ranks that are used.
        let used = 20 * loader.config().batch_size * loader.config().world_size;
        assert!(contents(loader.epoch_from(4, used)) == whole[20..]);
        assert_eq!(loader.epoch_from(4, usize::MAX).count(), 0);
    }
}

#[test]
fn a_batch_holds_the_images_its_indices_name() {
    let loader = init(LoaderConfig::new(4).with_shuffle(true).with_workers(2), numbered(10));
    let batches = contents(loader.epoch(0));
    assert_eq!(batches.iter().map(|batch| batch.0.len()).collect::<Vec<_>>(), [4, 4, 2]);
    for (indices, shape, values, labels) in batches {
        assert_eq!(shape, [indices.len(), 1, 1, 1]);
        assert_eq!(values, indices.iter().map(|&i| i as f32 / 255.0).collect::<Vec<_>>());
        assert_eq!(labels, indices.iter().map(|&i| i as i64 % 3).collect::<Vec<_>>());
    }
}

#[test]
fn ranks_share_each_epoch_and_exact_evaluation_sees_each_image_once() {
    let all = |sampling, drop_last| -> Vec<Vec<usize>> {
        (0..4)
            .map(|rank| {
                let config = LoaderConfig::new(2)
                    .with_rank(rank)
                    .with_world_size(4)
                    .with_shuffle(true)
                    .with_sampling(sampling)
                    .with_drop_last(drop_last);
                let loader = init(config, numbered(10));
                let order = order(loader.epoch(1));
                assert_eq!(order.len(), loader.num_items());
                order
            })
            .collect()
    };
    let mut exact = all(Sampling::Exact, false).concat();
    exact.sort_unstable();
    assert_eq!(exact, (0..10).collect::<Vec<_>>());
    // ceil(10 / 4) = 3 images a rank, of which two make a full batch.
    assert!(all(Sampling::Pad, false).iter().all(|rank| rank.len() == 3));
    assert!(all(Sampling::Pad, true).iter().all(|rank| rank.len() == 2));
    assert!(all(Sampling::Drop, false).iter().all(|rank| rank.len() == 2));
}

#[test]
fn exact_evaluation_works_with_more_ranks_than_images() {
    for (rank, expected) in [(0, vec![0]), (2, vec![2]), (3, vec![]), (7, vec![])] {
        let config = LoaderConfig::new(5).with_rank(rank).with_world_size(8).with_sampling(Sampling::Exact);
        let loader = init(config, numbered(3));
        assert_eq!(order(loader.epoch(0)), expected);
        assert_eq!(loader.num_batches(), expected.len());
    }
}

#[test]
fn an_error_comes_in_its_place_and_ends_the_epoch() {
    for workers in [0, 1, 3] {
        let data = Faulty::dataset(10, 5, Fault::Error);
        let loader = init(LoaderConfig::new(2).with_workers(workers), data);
        let mut batches = loader.epoch(0);
        assert_eq!(batches.next().unwrap().unwrap().indices, [0, 1]);
        assert_eq!(batches.next().unwrap().unwrap().indices, [2, 3]);
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::NotAFolder { .. }), "{error}");
        assert!(batches.next().is_none());
        assert_eq!(batches.remaining(), 0);
    }
}

#[test]
fn a_panic_in_the_dataset_becomes_an_error_with_its_message() {
    for workers in [0, 2] {
        let data = Faulty::dataset(6, 4, Fault::Panic);
        let loader = init(LoaderConfig::new(2).with_workers(workers), data);
        let mut batches = loader.epoch(0).skip(2);
        assert_eq!(
            batches.next().unwrap().unwrap_err().to_string(),
            "loading batch 2 panicked: image 4 is cursed; this is a fault in the dataset's code"
        );
        assert!(batches.next().is_none());
    }
}

#[test]
fn images_of_different_shapes_in_a_batch_are_named() {
    let loader = init(LoaderConfig::new(4), Faulty::dataset(8, 6, Fault::OtherShape));
    let error = loader.epoch(0).nth(1).unwrap().unwrap_err();
    let expected = "image 6 has shape [1, 1, 2] after the transforms, the first of its batch has [1, 1, 1]";
    assert!(error.to_string().starts_with(expected), "{error}");
    let fixed = Pipeline::new([Transform::Resize { height: 3, width: 2 }]);
    let config = LoaderConfig::new(4).with_transforms(fixed);
    assert_eq!(order(init(config, Faulty::dataset(8, 6, Fault::OtherShape)).epoch(0)).len(), 8);
}

#[test]
fn a_batch_that_never_arrives_is_an_error_after_the_time_limit() {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let data = Faulty::dataset(4, 2, Fault::Block(gate.clone()));
    let loader = init(LoaderConfig::new(2).with_timeout_seconds(1), data);
    let mut batches = loader.epoch(0);
    assert!(batches.next().unwrap().is_ok());
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, DataError::Timeout { batch: 1, seconds: 1 }), "{error}");
    assert!(batches.next().is_none());
    drop(closed);
}

#[test]
fn dropping_an_iterator_early_ends_its_threads_even_when_they_are_full() {
    let data = numbered(200);
    let loader = init(LoaderConfig::new(1).with_workers(4).with_prefetch(1), data.clone());
    let idle = Arc::strong_count(&data);
    for consumed in [0, 1, 7] {
        let mut batches = loader.epoch(0);
        batches.by_ref().take(consumed).for_each(|batch| drop(batch.unwrap()));
        assert!(Arc::strong_count(&data) > idle);
        drop(batches);
        // The threads hold the dataset; the limit is for a failing test only.
        let limit = Instant::now() + Duration::from_secs(30);
        while Arc::strong_count(&data) > idle {
            assert!(Instant::now() < limit, "a worker is still alive");
            std::thread::yield_now();
        }
    }
}

#[test]
fn settings_that_cannot_work_are_refused_with_their_numbers() {
    let refuse = |config: LoaderConfig, n: usize| config.init(numbered(n), &Device::default()).err().unwrap();
    assert!(matches!(refuse(LoaderConfig::new(0), 5), DataError::ZeroBatchSize));
    assert!(matches!(refuse(LoaderConfig::new(1), 0), DataError::EmptyDataset));
    assert!(matches!(refuse(LoaderConfig::new(1).with_world_size(0), 5), DataError::ZeroWorldSize));
    let rank = refuse(LoaderConfig::new(1).with_rank(3).with_world_size(2), 5);
    assert!(matches!(rank, DataError::RankOutOfRange { rank: 3, world_size: 2 }));
    let few = refuse(LoaderConfig::new(1).with_world_size(8), 5).to_string();
    assert!(few.contains("5 images for 8 ranks"), "{few}");
    let batch = refuse(LoaderConfig::new(4).with_world_size(2).with_drop_last(true), 5).to_string();
    assert!(batch.contains("each rank has 3 images, less than one batch of 4"), "{batch}");
    let crop = Pipeline::new([Transform::CenterCrop { height: 0, width: 1 }]);
    let transform = refuse(LoaderConfig::new(1).with_transforms(crop), 5);
    assert!(matches!(transform, DataError::InvalidTransform { transform: "center_crop", .. }));
}

#[test]
fn the_settings_are_saved_as_json_and_read_back() {
    let config = LoaderConfig::new(32)
        .with_shuffle(true)
        .with_sampling(Sampling::Exact)
        .with_transforms(DataSource::Digits.train_transforms(32));
    let json = config.to_string();
    assert!(json.contains(r#""sampling": "exact""#), "{json}");
    let read = LoaderConfig::load_binary(json.as_bytes()).unwrap();
    assert_eq!(read.to_string(), json);
}

#[test]
fn burns_iter_counts_epochs_from_the_one_that_was_set() {
    let loader = init(LoaderConfig::new(3).with_shuffle(true).with_seed(5), numbered(20));
    let next = |loader: &dyn DataLoader<Batch>| -> Vec<usize> {
        loader.iter().flat_map(|batch| batch.unwrap().indices).collect()
    };
    assert_eq!(next(&loader), order(loader.epoch(0)));
    assert_eq!(next(&loader), order(loader.epoch(1)));
    loader.set_epoch(7);
    let moved = loader.to_device(&Device::default());
    assert_eq!(next(moved.as_ref()), order(loader.epoch(7)));
    assert_eq!(next(&loader), order(loader.epoch(7)));
    assert_eq!(next(moved.as_ref()), order(loader.epoch(8)));
}

#[test]
fn burns_progress_counts_items_up_to_num_items() {
    for (drop_last, expected) in [(false, vec![0, 4, 8, 10]), (true, vec![0, 4, 8])] {
        let loader = init(LoaderConfig::new(4).with_drop_last(drop_last), numbered(10));
        let loader: &dyn DataLoader<Batch> = &loader;
        let mut batches = loader.iter();
        let mut seen = vec![batches.progress().items_processed];
        while batches.next().is_some() {
            let progress = batches.progress();
            assert_eq!(progress.items_total, loader.num_items());
            seen.push(progress.items_processed);
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn slices_hold_fixed_parts_of_the_dataset_and_split_covers_it() {
    let loader = init(LoaderConfig::new(4).with_shuffle(true), numbered(11));
    let items = |loader: &Arc<dyn DataLoader<Batch>>| -> Vec<usize> {
        let mut items: Vec<_> = loader.iter().flat_map(|batch| batch.unwrap().indices).collect();
        items.sort_unstable();
        items
    };
    let part = loader.slice(3, 8);
    assert_eq!(part.num_items(), 5);
    // Whatever the epoch: a slice made for validation never sees another's images.
    assert_eq!((items(&part), items(&part)), ((3..8).collect(), (3..8).collect()));
    assert_eq!(items(&part.slice(1, 3)), [4, 5]);
    assert_eq!(items(&part.slice(4, 100)), [7]);
    assert!(items(&part.slice(9, 9)).is_empty() && items(&part.slice(4, 2)).is_empty());
    let devices = [Device::default(), Device::default(), Device::default()];
    let parts = split_dataloader(Arc::new(loader) as Arc<dyn DataLoader<Batch>>, &devices);
    assert_eq!(parts.iter().map(items).collect::<Vec<_>>().concat(), (0..11).collect::<Vec<_>>());
}

#[test]
fn the_time_spent_waiting_is_summed_over_epochs_and_devices() {
    let loader = init(LoaderConfig::new(4).with_workers(0), numbered(10));
    let mut batches = loader.epoch(0);
    assert_eq!(batches.wait_seconds(), 0.0);
    batches.by_ref().for_each(|batch| drop(batch.unwrap()));
    let first = loader.wait_seconds();
    assert!(first > 0.0 && (first - batches.wait_seconds()).abs() < 1e-6);
    assert_eq!(loader.to_device(&Device::default()).iter().count(), 3);
    assert!(loader.wait_seconds() > first);
}
