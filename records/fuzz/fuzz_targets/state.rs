#![no_main]

burn_nccl_records_fuzz::target!(state);
