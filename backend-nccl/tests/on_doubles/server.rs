//! The server itself: it starts, and what it is asked for lies in the double's memory.

use stubs::{Config, Stubs};

/// Runs the test `inside::NAME` in a process of its own, on doubles that are told this.
fn run(config: &Config, name: &str) {
    let stubs = Stubs::install(config).unwrap();
    stubs.run_test(&format!("server::inside::{name}")).unwrap();
}

#[test]
fn what_is_created_is_read_back() {
    run(&Config::default(), "create_and_read");
}

#[test]
fn a_resource_is_the_address_of_the_bytes() {
    run(&Config::default(), "resource");
}

#[test]
fn sync_and_flush_end() {
    run(&Config::default(), "sync");
}

#[test]
fn two_gpus_have_memory_of_their_own() {
    run(&Config::default(), "second_gpu");
}

/// NCCL's double, called by code that is not ours.
#[test]
fn the_servers_own_all_reduce_sums_over_two_gpus() {
    run(&Config::default(), "all_reduce");
}

#[test]
fn memory_that_the_gpu_does_not_have_is_an_error_of_the_server() {
    let mut config = Config::default();
    for device in &mut config.cuda.devices {
        device.memory_bytes = 16 << 20;
    }
    run(&config, "out_of_memory");
}

/// Started by the tests above; alone, they find no driver.
mod inside {
    use burn_cubecl::CubeDevice;
    use burn_cubecl::cubecl::{
        // The trait has no other name outside of CubeCL; burn is pinned, and so is it.
        __private::Runtime,
        client::Client,
        cuda::{CudaDevice, CudaRuntime},
        future::block_on,
        ir::{ElemType, FloatKind},
        server::ReduceOperation,
    };
    use stubs::Stubs;

    type CudaServer = <CudaRuntime as Runtime>::Server;

    fn client(ordinal: usize) -> Client {
        CudaRuntime::client(&CudaDevice::new(ordinal))
    }

    fn assert_no_faults() {
        let stubs = Stubs::of_process().expect("started by `run_test`");
        // Another instance than the server's would have no faults either: but nobody would have initialised it.
        // SAFETY: the double runs nothing when it is loaded, and the function is of this type.
        let code = unsafe {
            let driver = libloading::Library::new(stubs.cuda_path()).unwrap();
            let count = driver.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"cuDeviceGetCount\0").unwrap();
            count(&mut 0)
        };
        assert_eq!((code, stubs.faults().unwrap()), (0, Vec::new()));
    }

    fn numbered(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn create_and_read() {
        let client = client(0);
        // Below, at and above what pools and pages are made of.
        for len in [1, 512, 4096, 3 << 20] {
            let bytes = numbered(len);
            let handle = client.create_from_slice(&bytes);
            assert_eq!(client.read_one(handle).unwrap()[..len], bytes);
        }
        assert_no_faults();
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn resource() {
        let client = client(0);
        let bytes = numbered(1000);
        let handle = client.create_from_slice(&bytes);
        let resource = client.get_resource::<CudaServer>(handle).unwrap();
        block_on(client.sync()).unwrap();
        let (address, size) = (resource.resource().ptr, resource.resource().size);
        assert!(address % 512 == 0 && size >= 1000, "{size} bytes at {address:#x}");
        // SAFETY: the double's device memory is host memory, the resource pins it, and nothing is under way.
        let found = unsafe { std::slice::from_raw_parts(address as *const u8, 1000) };
        assert_eq!(found, bytes);
        assert_no_faults();
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn sync() {
        let client = client(0);
        let handles: Vec<_> =
            (0..100).map(|len| client.create_from_slice(&numbered(1 + len * 100))).collect();
        client.flush().unwrap();
        block_on(client.sync()).unwrap();
        drop(handles);
        client.memory_cleanup().unwrap();
        block_on(client.sync()).unwrap();
        assert_no_faults();
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn second_gpu() {
        let (first, second) = (client(0), client(1));
        let bytes = numbered(5000);
        let (here, there) = (first.create_from_slice(&bytes), second.create_from_slice(&bytes));
        let resources =
            (first.get_resource::<CudaServer>(here), second.get_resource::<CudaServer>(there.clone()));
        assert_ne!(resources.0.unwrap().resource().ptr, resources.1.unwrap().resource().ptr);
        assert_eq!(second.read_one(there).unwrap()[..5000], bytes);
        assert_no_faults();
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn all_reduce() {
        let mut clients = [client(0), client(1)];
        assert!(clients[0].has_device_transport());
        let devices = [0, 1].map(|ordinal| CubeDevice::Cuda(CudaDevice::new(ordinal)).to_id());
        // Element i is i on the first GPU and 10 i on the second.
        let values =
            |scale: f32| (0..256).flat_map(move |i| (scale * i as f32).to_le_bytes()).collect::<Vec<u8>>();
        let handles: Vec<_> = clients
            .iter_mut()
            .zip([1.0, 10.0])
            .map(|(client, scale)| {
                let handle = client.create_from_slice(&values(scale));
                let dtype = ElemType::Float(FloatKind::F32);
                client.all_reduce(
                    handle.clone(),
                    handle.clone(),
                    dtype,
                    devices.to_vec(),
                    ReduceOperation::Sum,
                );
                client.sync_collective();
                handle
            })
            .collect();
        for (client, handle) in clients.iter().zip(handles) {
            assert_eq!(client.read_one(handle).unwrap()[..1024], values(11.0));
        }
        assert_no_faults();
    }

    #[test]
    #[ignore = "started with the doubles by a test above"]
    fn out_of_memory() {
        let client = client(0);
        let mut held = Vec::new();
        // 16 MiB do not hold 20.
        let error = (0..20).find_map(|_| {
            let handle = client.empty(1 << 20);
            held.push(handle.clone());
            client.get_resource::<CudaServer>(handle).err()
        });
        let text = error.expect("there are 16 MiB").to_string();
        assert!(text.contains("out of device memory"), "{text}");
        // What is freed can be had again.
        held.clear();
        let bytes = numbered(1 << 20);
        let handle = client.create_from_slice(&bytes);
        assert_eq!(client.read_one(handle).unwrap()[..1 << 20], bytes);
        assert_no_faults();
    }
}
