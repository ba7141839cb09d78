//! The one error type of the crate.

use std::path::PathBuf;

use crate::DecodeError;

/// Why data could not be found, read, sampled or turned into a batch.
///
/// Each message says what failed, why, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The name of a data source is none of the accepted forms.
    #[error("unknown data source `{given}`: use one of digits, cifar10:PATH, cifar100:PATH, folder:PATH")]
    UnknownSource {
        /// The text that was given.
        given: String,
    },

    /// The name of a data source that lives on disk comes without a path.
    #[error("data source `{name}` needs a folder: write {name}:PATH")]
    MissingPath {
        /// The name of the source.
        name: String,
    },

    /// The operating system refused to read a file or folder.
    #[error("cannot read {}: {source}; check that it exists and that this user may read it", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },

    /// A path that should be a folder is something else.
    #[error("{} is not a folder: give the folder that holds the data", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },

    /// An image folder has `train/` or `val/`, but not the split that was asked for.
    #[error("{} has no `{wanted}` folder: create it with one folder per class", root.display())]
    MissingSplit {
        /// The image folder.
        root: PathBuf,
        /// The missing folder, or the two accepted names.
        wanted: &'static str,
    },

    /// An image folder has fewer than two class folders.
    #[error(
        "{} holds {found} class folders, classification needs at least 2: expected one folder per class, \
         each with .jpg or .png files",
        root.display()
    )]
    TooFewClasses {
        /// The folder that was searched.
        root: PathBuf,
        /// How many class folders it has.
        found: usize,
    },

    /// A class folder has no images, or too few to be split.
    #[error(
        "class folder {} has no images for the {split} split: add .jpg or .png files (without train/ and val/ \
         folders each sixth image of a class is the test split) or remove the folder",
        path.display()
    )]
    EmptyClass {
        /// The class folder.
        path: PathBuf,
        /// The split that was asked for.
        split: &'static str,
    },

    /// A test folder has a class that the training folder lacks, so it has no index.
    #[error(
        "class `{class}` of {} is not among the training classes: class folders must have the same names in both",
        root.display()
    )]
    UnknownClass {
        /// The folder of the split.
        root: PathBuf,
        /// The class.
        class: String,
    },

    /// A class folder is a link to a folder that contains it.
    #[error("class folder {} links to {}, which contains it: remove the link", path.display(), target.display())]
    LinkLoop {
        /// The class folder.
        path: PathBuf,
        /// Where the link leads.
        target: PathBuf,
    },

    /// The bytes of an image file are not a JPEG or PNG image that can be decoded.
    #[error("cannot decode {}: {source}; replace or remove the file (JPEG and PNG are read)", path.display())]
    Decode {
        /// The image file.
        path: PathBuf,
        /// Why.
        source: DecodeError,
    },

    /// A binary file does not have the length its format prescribes.
    #[error(
        "{} is truncated or not in the expected format: expected {expected} bytes, found {found}; download it again",
        path.display()
    )]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes that the format prescribes.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },

    /// A record's label is not one of the classes.
    #[error(
        "{}: record {record} has label {label}, expected 0..{num_classes}; the file is damaged or of another dataset",
        path.display()
    )]
    LabelOutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the record in the file.
        record: usize,
        /// The label found.
        label: usize,
        /// The number of classes.
        num_classes: usize,
    },

    /// Pixels, labels and class names of an in-memory dataset do not fit together.
    #[error("in-memory dataset of {channels}x{height}x{width} images does not fit together: {reason}")]
    InvalidMemory {
        /// Channels of an image.
        channels: usize,
        /// Height of an image in pixels.
        height: usize,
        /// Width of an image in pixels.
        width: usize,
        /// What does not fit, with both numbers.
        reason: String,
    },

    /// A dataset gave an image whose pixels do not fill its shape.
    #[error(
        "an image of shape {channels}x{height}x{width} has {found} pixel values: the dataset must give exactly \
         channels * height * width of them, at least 1"
    )]
    InvalidImage {
        /// Channels of the image.
        channels: usize,
        /// Height of the image in pixels.
        height: usize,
        /// Width of the image in pixels.
        width: usize,
        /// Pixel values that it has.
        found: usize,
    },

    /// The dataset has no images.
    #[error("the dataset is empty: a loader needs at least one image")]
    EmptyDataset,

    /// A batch cannot have zero images.
    #[error("batch size is 0: use at least 1")]
    ZeroBatchSize,

    /// A job cannot have zero ranks.
    #[error("world size is 0: use the number of processes, at least 1")]
    ZeroWorldSize,

    /// The rank is not one of the job's.
    #[error("rank {rank} is outside 0..{world_size}: give each process its own rank below the world size")]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },

    /// Some ranks would have nothing but repeats, or nothing at all, to train on.
    #[error(
        "the dataset has {images} images for {world_size} ranks: use at most {images} ranks, or more images \
         (exact sampling allows it for evaluation)"
    )]
    FewerImagesThanRanks {
        /// Images in the dataset.
        images: usize,
        /// The number of ranks.
        world_size: usize,
    },

    /// With the last partial batch dropped no batch is left.
    #[error(
        "each rank has {samples} images, less than one batch of {batch_size}, and drop_last drops partial \
         batches: lower the batch size or switch drop_last off"
    )]
    NoFullBatch {
        /// Images per rank and epoch.
        samples: usize,
        /// The batch size.
        batch_size: usize,
    },

    /// A transform has a setting out of its range.
    #[error("transform {transform}: {name} is {value}, expected {expected}")]
    InvalidTransform {
        /// The transform.
        transform: &'static str,
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },

    /// A transform cannot work on an image of this shape.
    #[error(
        "transform {transform} cannot take an image of shape {channels}x{height}x{width}: expected {expected}"
    )]
    TransformShape {
        /// The transform.
        transform: &'static str,
        /// Channels of the image.
        channels: usize,
        /// Height of the image in pixels.
        height: usize,
        /// Width of the image in pixels.
        width: usize,
        /// What it can take.
        expected: &'static str,
    },

    /// Images of one batch come out of the transforms with different shapes.
    #[error(
        "image {index} has shape {found:?} after the transforms, the first of its batch has {expected:?}: \
         end the geometric transforms with a resize or crop to a fixed size"
    )]
    MixedShapes {
        /// Index of the image in the dataset.
        index: usize,
        /// Shape [channels, height, width] of the batch's first image.
        expected: [usize; 3],
        /// Shape [channels, height, width] of this image.
        found: [usize; 3],
    },

    /// The dataset's or a transform's code panicked.
    #[error("loading batch {batch} panicked: {message}; this is a fault in the dataset's code")]
    WorkerPanic {
        /// Number of the batch within the epoch.
        batch: usize,
        /// The panic's message.
        message: String,
    },

    /// A batch did not arrive in time.
    #[error(
        "batch {batch} was not loaded within {seconds} s: check that the storage answers, use more workers, or \
         raise timeout_seconds"
    )]
    Timeout {
        /// Number of the batch within the epoch.
        batch: usize,
        /// The time limit in seconds.
        seconds: u64,
    },
}
