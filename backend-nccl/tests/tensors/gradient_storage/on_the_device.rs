#[path = "../accumulation.rs"]
mod accumulation;
#[path = "../data_parallel.rs"]
mod data_parallel;
#[path = "../overlap.rs"]
mod overlap;
#[path = "../scaling_on_ranks.rs"]
mod scaling_on_ranks;

use burn_nccl::ddp::{BucketStorage, DdpConfig};

fn config() -> DdpConfig {
    DdpConfig::new().with_bucket_storage(BucketStorage::Device)
}
