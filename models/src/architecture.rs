use burn::tensor::Device;
use burn_nccl_records::Architecture;

use crate::{ResNet, ResNetConfig};

/// Above what any data set has; a classifier of so many classes takes 2 GB.
const MOST_CLASSES: usize = 1 << 18;
/// As many as hyperspectral images have.
const MOST_CHANNELS: usize = 1 << 12;

/// Files of a [`ResNet`] can describe their network: [`save_model`](burn_nccl_records::save_model) writes such a file.
impl Architecture for ResNetConfig {
    const NAME: &'static str = "resnet";

    type Model = ResNet;

    fn init(&self, device: &Device) -> ResNet {
        Self::init(self, device)
    }

    fn check(&self) -> Result<(), String> {
        let within = |name: &str, number: usize, most: usize| match number {
            1.. if number <= most => Ok(()),
            _ => Err(format!("{name} is {number}, expected 1 to {most}")),
        };
        within("num_classes", self.num_classes, MOST_CLASSES)?;
        within("input_channels", self.input_channels, MOST_CHANNELS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Depth;

    #[test]
    fn a_described_network_is_refused_before_it_asks_for_all_memory() {
        assert_eq!(Architecture::check(&ResNetConfig::new(Depth::ResNet50, 1000)), Ok(()));
        let error = Architecture::check(&ResNetConfig::new(Depth::ResNet18, usize::MAX)).unwrap_err();
        assert!(error.contains("num_classes"), "{error}");
        assert!(Architecture::check(&ResNetConfig::new(Depth::ResNet18, 0)).is_err());
        assert!(Architecture::check(&ResNetConfig::new(Depth::ResNet18, 9).with_input_channels(0)).is_err());
    }
}
