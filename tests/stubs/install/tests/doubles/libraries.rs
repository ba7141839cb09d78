//! The functions of both libraries, as a program would call them.

use std::{
    ffi::{CStr, c_char, c_void},
    time::{Duration, Instant},
};

use libloading::Library;
use stubs::{Config, Stubs};

/// Both doubles, loaded from a folder of their own.
pub(crate) struct Doubles {
    pub(crate) stubs: Stubs,
    cuda: Library,
    nccl: Library,
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` of NCCL 2.18.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
    pub(crate) blocking: i32,
    pub(crate) numbers: [i32; 3],
    pub(crate) net_name: usize,
    pub(crate) split_share: i32,
}

/// `CUDA_MEMCPY2D`, where only memory and not arrays are named. Types: 1 is the host, 2 a GPU.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Memcpy2d {
    pub(crate) from_x: usize,
    pub(crate) from_y: usize,
    pub(crate) from_type: u32,
    pub(crate) from_host: usize,
    pub(crate) from_device: u64,
    pub(crate) from_array: usize,
    pub(crate) from_pitch: usize,
    pub(crate) to_x: usize,
    pub(crate) to_y: usize,
    pub(crate) to_type: u32,
    pub(crate) to_host: usize,
    pub(crate) to_device: u64,
    pub(crate) to_array: usize,
    pub(crate) to_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// A configuration that does not block.
pub(crate) const NON_BLOCKING: Configuration = Configuration {
    size: 48,
    magic: 0xcafe_beef,
    version: 21700,
    blocking: 0,
    numbers: [i32::MIN; 3],
    net_name: 0,
    split_share: i32::MIN,
};

/// Calls a function of a library by its name, with arguments of these types, for a code.
macro_rules! call {
    ($library:expr, $name:literal, $($argument:expr => $kind:ty),* $(,)?) => {{
        // SAFETY: the callers below give the types that the headers of CUDA and NCCL give for this name, and pointers that live.
        unsafe {
            let function: libloading::Symbol<'_, unsafe extern "C" fn($($kind),*) -> i32> = $library.get($name).unwrap();
            function($($argument),*)
        }
    }};
}

impl Doubles {
    pub(crate) fn new(config: &Config) -> Self {
        Self::of(Stubs::install(config).unwrap())
    }

    pub(crate) fn of(stubs: Stubs) -> Self {
        // SAFETY: the doubles run nothing when they are loaded.
        let (cuda, nccl) = unsafe { (Library::new(stubs.cuda_path()), Library::new(stubs.nccl_path())) };
        let doubles = Self { cuda: cuda.unwrap(), nccl: nccl.unwrap(), stubs };
        assert_eq!(call!(doubles.cuda, b"cuInit\0", 0 => u32), 0);
        doubles
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.stubs.faults().unwrap()
    }

    /// Makes the context of a GPU current on this thread; its handle.
    pub(crate) fn use_gpu(&self, device: i32) -> usize {
        let mut context = 0;
        assert_eq!(
            call!(self.cuda, b"cuDevicePrimaryCtxRetain\0", &mut context => *mut usize, device => i32),
            0
        );
        assert_eq!(call!(self.cuda, b"cuCtxSetCurrent\0", context => usize), 0);
        context
    }

    /// A stream; `flags` 1 is non-blocking.
    pub(crate) fn stream(&self, flags: u32) -> usize {
        let mut stream = 0;
        assert_eq!(call!(self.cuda, b"cuStreamCreate\0", &mut stream => *mut usize, flags => u32), 0);
        stream
    }

    /// An event without timing.
    pub(crate) fn event(&self) -> usize {
        self.event_with(2)
    }

    pub(crate) fn event_with(&self, flags: u32) -> usize {
        let mut event = 0;
        assert_eq!(call!(self.cuda, b"cuEventCreate\0", &mut event => *mut usize, flags => u32), 0);
        event
    }

    pub(crate) fn record(&self, event: usize, stream: usize) -> i32 {
        call!(self.cuda, b"cuEventRecord\0", event => usize, stream => usize)
    }

    pub(crate) fn wait_event(&self, stream: usize, event: usize) -> i32 {
        call!(self.cuda, b"cuStreamWaitEvent\0", stream => usize, event => usize, 0 => u32)
    }

    pub(crate) fn record_context(&self, context: usize, event: usize) -> i32 {
        call!(self.cuda, b"cuCtxRecordEvent\0", context => usize, event => usize)
    }

    pub(crate) fn wait_context(&self, context: usize, event: usize) -> i32 {
        call!(self.cuda, b"cuCtxWaitEvent\0", context => usize, event => usize)
    }

    pub(crate) fn query(&self, event: usize) -> i32 {
        call!(self.cuda, b"cuEventQuery\0", event => usize)
    }

    pub(crate) fn synchronize(&self, stream: usize) -> i32 {
        call!(self.cuda, b"cuStreamSynchronize\0", stream => usize)
    }

    /// Runs a function on a stream.
    pub(crate) fn host_function(
        &self,
        stream: usize,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> i32 {
        call!(self.cuda, b"cuLaunchHostFunc\0", stream => usize, function => unsafe extern "C" fn(*mut c_void), data => *mut c_void)
    }

    /// Memory of the current GPU, or the code that says why not.
    pub(crate) fn allocate(&self, len: usize) -> Result<u64, i32> {
        let mut address = 0;
        match call!(self.cuda, b"cuMemAlloc_v2\0", &mut address => *mut u64, len => usize) {
            0 => Ok(address),
            code => Err(code),
        }
    }

    pub(crate) fn free(&self, address: u64) -> i32 {
        call!(self.cuda, b"cuMemFree_v2\0", address => u64)
    }

    /// Pinned host memory.
    pub(crate) fn pin(&self, len: usize) -> *mut u8 {
        let mut address = std::ptr::null_mut();
        assert_eq!(call!(self.cuda, b"cuMemAllocHost_v2\0", &mut address => *mut *mut u8, len => usize), 0);
        address
    }

    pub(crate) fn upload(&self, target: u64, source: *const u8, len: usize, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemcpyHtoDAsync_v2\0", target => u64, source => *const u8, len => usize, stream => usize)
    }

    pub(crate) fn download(&self, target: *mut u8, source: u64, len: usize, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemcpyDtoHAsync_v2\0", target => *mut u8, source => u64, len => usize, stream => usize)
    }

    pub(crate) fn copy(&self, target: u64, source: u64, len: usize, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemcpyDtoDAsync_v2\0", target => u64, source => u64, len => usize, stream => usize)
    }

    pub(crate) fn fill(&self, address: u64, value: u8, len: usize, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemsetD8Async\0", address => u64, value => u8, len => usize, stream => usize)
    }

    /// Frees memory when the stream comes to it.
    pub(crate) fn free_later(&self, address: u64, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemFreeAsync\0", address => u64, stream => usize)
    }

    pub(crate) fn copy_rows(&self, rows: &Memcpy2d, stream: usize) -> i32 {
        call!(self.cuda, b"cuMemcpy2DAsync_v2\0", rows => *const Memcpy2d, stream => usize)
    }

    /// The milliseconds between two events that have timing, or the code that says why not.
    pub(crate) fn elapsed(&self, start: usize, end: usize) -> Result<f32, i32> {
        let mut ms = f32::NAN;
        match call!(self.cuda, b"cuEventElapsedTime\0", &mut ms => *mut f32, start => usize, end => usize) {
            0 => Ok(ms),
            code => Err(code),
        }
    }

    /// Memory with these bytes, once the legacy stream has them.
    pub(crate) fn with(&self, bytes: &[u8]) -> u64 {
        let address = self.allocate(bytes.len()).unwrap();
        let source = bytes.as_ptr();
        assert_eq!(
            call!(self.cuda, b"cuMemcpyHtoD_v2\0", address => u64, source => *const u8, bytes.len() => usize),
            0
        );
        address
    }

    /// The bytes of memory, once all blocking streams are done.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let target = bytes.as_mut_ptr();
        assert_eq!(
            call!(self.cuda, b"cuMemcpyDtoH_v2\0", target => *mut u8, address => u64, len => usize),
            0
        );
        bytes
    }

    /// The name of a code of the driver.
    pub(crate) fn error_name(&self, code: i32) -> String {
        let mut name: *const c_char = std::ptr::null();
        assert_eq!(call!(self.cuda, b"cuGetErrorName\0", code => i32, &mut name => *mut *const c_char), 0);
        // SAFETY: the library's own text.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
    }

    pub(crate) fn has_cuda(&self, symbol: &str) -> bool {
        // SAFETY: only looked up.
        unsafe { self.cuda.get::<*const c_void>(symbol.as_bytes()) }.is_ok()
    }

    pub(crate) fn version(&self) -> Result<i32, i32> {
        let mut version = 0;
        match call!(self.nccl, b"ncclGetVersion\0", &mut version => *mut i32) {
            0 => Ok(version),
            code => Err(code),
        }
    }

    pub(crate) fn unique_id(&self) -> UniqueId {
        let mut id = UniqueId([0; 128]);
        assert_eq!(call!(self.nccl, b"ncclGetUniqueId\0", &mut id => *mut UniqueId), 0);
        id
    }

    /// A communicator, and the code of its making.
    pub(crate) fn join(&self, ranks: i32, id: UniqueId, rank: i32) -> (usize, i32) {
        let mut made = 0;
        let code = call!(self.nccl, b"ncclCommInitRank\0", &mut made => *mut usize, ranks => i32, id => UniqueId, rank => i32);
        (made, code)
    }

    pub(crate) fn join_with(
        &self,
        ranks: i32,
        id: UniqueId,
        rank: i32,
        configuration: &Configuration,
    ) -> (usize, i32) {
        let mut made = 0;
        let code = call!(self.nccl, b"ncclCommInitRankConfig\0", &mut made => *mut usize, ranks => i32, id => UniqueId,
            rank => i32, configuration => *const Configuration);
        (made, code)
    }

    /// What a poll says.
    pub(crate) fn poll(&self, communicator: usize) -> i32 {
        let mut error = -1;
        assert_eq!(
            call!(self.nccl, b"ncclCommGetAsyncError\0", communicator => usize, &mut error => *mut i32),
            0
        );
        error
    }

    /// Polls until there is no progress to report any more; the last answer.
    pub(crate) fn settle(&self, communicator: usize) -> i32 {
        let mut code = 7;
        until(|| {
            code = self.poll(communicator);
            code != 7
        });
        code
    }

    pub(crate) fn finalize(&self, communicator: usize) -> i32 {
        call!(self.nccl, b"ncclCommFinalize\0", communicator => usize)
    }

    pub(crate) fn destroy(&self, communicator: usize) -> i32 {
        call!(self.nccl, b"ncclCommDestroy\0", communicator => usize)
    }

    pub(crate) fn abort(&self, communicator: usize) -> i32 {
        call!(self.nccl, b"ncclCommAbort\0", communicator => usize)
    }

    /// `arguments` are send, receive, count, type, reduction.
    pub(crate) fn all_reduce(
        &self,
        arguments: (u64, u64, usize, i32, i32),
        communicator: usize,
        stream: usize,
    ) -> i32 {
        let (send, recv, count, dtype, op) = arguments;
        call!(self.nccl, b"ncclAllReduce\0", send => u64, recv => u64, count => usize, dtype => i32, op => i32,
            communicator => usize, stream => usize)
    }

    /// `arguments` are send, receive, count, type, reduction.
    pub(crate) fn reduce_scatter(
        &self,
        arguments: (u64, u64, usize, i32, i32),
        communicator: usize,
        stream: usize,
    ) -> i32 {
        let (send, recv, count, dtype, op) = arguments;
        call!(self.nccl, b"ncclReduceScatter\0", send => u64, recv => u64, count => usize, dtype => i32, op => i32,
            communicator => usize, stream => usize)
    }

    /// `arguments` are send, receive, count, type, root.
    pub(crate) fn broadcast(
        &self,
        arguments: (u64, u64, usize, i32, i32),
        communicator: usize,
        stream: usize,
    ) -> i32 {
        let (send, recv, count, dtype, root) = arguments;
        call!(self.nccl, b"ncclBroadcast\0", send => u64, recv => u64, count => usize, dtype => i32, root => i32,
            communicator => usize, stream => usize)
    }

    /// `arguments` are send, receive, count, type.
    pub(crate) fn all_gather(
        &self,
        arguments: (u64, u64, usize, i32),
        communicator: usize,
        stream: usize,
    ) -> i32 {
        let (send, recv, count, dtype) = arguments;
        call!(self.nccl, b"ncclAllGather\0", send => u64, recv => u64, count => usize, dtype => i32,
            communicator => usize, stream => usize)
    }

    /// `arguments` are memory, count, type, peer.
    pub(crate) fn send(&self, arguments: (u64, usize, i32, i32), communicator: usize, stream: usize) -> i32 {
        let (send, count, dtype, peer) = arguments;
        call!(self.nccl, b"ncclSend\0", send => u64, count => usize, dtype => i32, peer => i32,
            communicator => usize, stream => usize)
    }

    /// `arguments` are memory, count, type, peer.
    pub(crate) fn receive(
        &self,
        arguments: (u64, usize, i32, i32),
        communicator: usize,
        stream: usize,
    ) -> i32 {
        let (recv, count, dtype, peer) = arguments;
        call!(self.nccl, b"ncclRecv\0", recv => u64, count => usize, dtype => i32, peer => i32,
            communicator => usize, stream => usize)
    }

    pub(crate) fn group_start(&self) -> i32 {
        call!(self.nccl, b"ncclGroupStart\0",)
    }

    pub(crate) fn group_end(&self) -> i32 {
        call!(self.nccl, b"ncclGroupEnd\0",)
    }
}

/// Waits until something holds, but not for ever.
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a rank on each of some threads, each on a GPU and with a communicator of its own, and gives what they give.
pub(crate) fn ranks<R: Send>(doubles: &Doubles, count: i32, rank: impl Fn(i32, usize) -> R + Sync) -> Vec<R> {
    let id = doubles.unique_id();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let rank = &rank;
                scope.spawn(move || {
                    doubles.use_gpu(number);
                    let (communicator, code) = doubles.join(count, id, number);
                    assert_eq!(code, 0);
                    let result = rank(number, communicator);
                    assert_eq!(doubles.destroy(communicator), 0);
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
