//! The imported network: what `recipe-resnet-export import` wrote, and what fine-tuning adds to it.

use burn::tensor::{Bytes, Device};

pub(crate) use self::thin_resnet::Model;

/// The weights that `import` wrote beside the code. A larger file is better read when the program runs.
const WEIGHTS: &[u8] = include_bytes!("thin_resnet.bpk");

/// Generated, and so without docs, public for whoever includes it, and with a field that not every network needs.
mod thin_resnet {
    #![allow(dead_code, missing_docs, unreachable_pub)]

    include!("thin_resnet.rs");

    // The fields are private, so what touches them stands in the same module.
    impl Model {
        /// The same network with a new last layer, for other classes.
        pub(crate) fn with_classes(self, classes: usize) -> Self {
            let [features, _] = self.linear1.weight.dims();
            let device = self.linear1.weight.device();
            Self { linear1: LinearConfig::new(features, classes).init(&device), ..self }
        }
    }
}

/// The network as it was imported.
///
/// On a device with `.autodiff()` all of it trains: batch norms compute with the batch's statistics there and update
/// their running ones; `valid()` of the network computes with those.
pub(crate) fn load(device: &Device) -> Model {
    Model::from_bytes(Bytes::from_bytes_vec(WEIGHTS.to_vec()), device)
}
