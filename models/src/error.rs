use thiserror::Error;

/// Why a model could not be described.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The name is not one of [`Depth::ALL`](crate::Depth::ALL).
    #[error("unknown model `{name}`: use resnet18, resnet34, resnet50, resnet101 or resnet152")]
    UnknownDepth {
        /// The name as given.
        name: String,
    },
    /// The name is not one of [`Stem`](crate::Stem)'s.
    #[error("unknown stem `{name}`: use imagenet or cifar")]
    UnknownStem {
        /// The name as given.
        name: String,
    },
}
