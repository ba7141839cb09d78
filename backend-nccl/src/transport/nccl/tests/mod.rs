//! NCCL on test doubles of the driver and of the library: device memory is memory of the host, and streams are threads that
//! dawdle. What the doubles find wrong in their callers they keep, and every test asks for it.

mod endings;
mod failures;
mod groups;
mod operations;
mod orderings;
mod processes;
mod setups;
mod values;

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use stubs::{Config, Stubs};

use super::{
    Libraries, Nccl, Settings, Variables,
    driver::Driver,
    engine::Flight,
    event::Events,
    gpu::Gpu,
    operation::{DeviceCall, DeviceOperation, Fence, Region},
    stream::{Memory, Stream},
};
use crate::{
    Error, GroupOptions, ProcessGroup,
    deadline::Deadline,
    failure::Failure,
    transport::{DType, StreamOrdering},
};

/// Far more than anything here takes, and less than a test runner waits.
const LIMIT: Duration = Duration::from_secs(20);

/// How the ranks of a test are made.
#[derive(Clone, Debug)]
struct Plan {
    config: Config,
    world_size: usize,
    ordering: StreamOrdering,
    timeout: Duration,
    connect: Duration,
    /// By rank; the rank itself where there are fewer.
    ordinals: Vec<usize>,
}

impl Plan {
    fn of(world_size: usize) -> Self {
        Self {
            config: Config::default(),
            world_size,
            ordering: StreamOrdering::Auto,
            timeout: LIMIT,
            connect: LIMIT,
            ordinals: Vec::new(),
        }
    }

    fn ordered(self, ordering: StreamOrdering) -> Self {
        Self { ordering, ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn settings(&self, stubs: &Stubs, rank: usize) -> Settings {
        Settings {
            rank,
            world_size: self.world_size,
            number: 1,
            ordinal: self.ordinals.get(rank).copied().unwrap_or(rank),
            ordering: self.ordering,
            timeout: self.timeout,
            libraries: libraries(stubs),
            variables: Variables::default(),
            test_bytes: 4 << 20,
        }
    }

    fn groups(&self) -> Vec<ProcessGroup> {
        ProcessGroup::local(self.world_size, GroupOptions::default().with_timeout(self.timeout)).unwrap()
    }

    /// Runs every rank on a thread of its own.
    fn run<R: Send>(&self, body: impl Fn(Rank) -> R + Sync) -> Vec<R> {
        let stubs = Stubs::install(&self.config).unwrap();
        let results = self.run_on(&stubs, |rank| body(rank.unwrap()));
        assert_eq!(stubs.faults().unwrap(), [""; 0]);
        results
    }

    /// The same on doubles that the test looks at, with the outcome of the set-up.
    fn run_on<R: Send>(&self, stubs: &Stubs, body: impl Fn(Result<Rank, Error>) -> R + Sync) -> Vec<R> {
        self.run_each(|_| stubs, |_, settings| settings, body)
    }

    /// The same with doubles and settings that differ between ranks.
    fn run_each<'a, R: Send>(
        &self,
        stubs: impl Fn(usize) -> &'a Stubs + Sync,
        change: impl Fn(usize, Settings) -> Settings + Sync,
        body: impl Fn(Result<Rank, Error>) -> R + Sync,
    ) -> Vec<R> {
        let groups = self.groups();
        let body = &body;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .into_iter()
                .enumerate()
                .map(|(rank, group)| {
                    let settings = change(rank, self.settings(stubs(rank), rank));
                    let connect = self.connect;
                    scope.spawn(move || body(Rank::connect(group, settings, connect)))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}

fn libraries(stubs: &Stubs) -> Libraries {
    Libraries { nccl: Some(stubs.nccl_path()), driver: Some(stubs.cuda_path()), python: Vec::new() }
}

/// One rank of a test, with a stream that stands for the computation.
struct Rank {
    nccl: Nccl,
    group: ProcessGroup,
    rank: usize,
    world_size: usize,
    compute: Arc<Stream>,
    gpu: Arc<Gpu>,
    events: Arc<Events>,
    /// How many operations have ended.
    ends: Arc<AtomicUsize>,
}

impl Rank {
    fn connect(group: ProcessGroup, settings: Settings, limit: Duration) -> Result<Self, Error> {
        let (rank, world_size) = (settings.rank, settings.world_size);
        let (libraries, ordinal) = (settings.libraries.clone(), settings.ordinal);
        let nccl = Nccl::connect(group.transport(), settings, Deadline::after(limit))?;
        let gpu = Gpu::retain(Driver::load(&libraries).unwrap(), ordinal).unwrap();
        gpu.bind().unwrap();
        let compute = Arc::new(Stream::new(&gpu).unwrap());
        let events = Events::new(&gpu);
        Ok(Self { nccl, group, rank, world_size, compute, gpu, events, ends: Arc::default() })
    }

    /// Memory that nothing has been written to.
    fn memory(&self, len_bytes: usize) -> Block {
        let memory = Memory::new(&self.gpu, len_bytes.max(1), "a test").unwrap();
        Block { region: Region { address: memory.address, len_bytes }, memory }
    }

    /// Memory that the computation will have written to when it comes to that.
    fn computed(&self, contents: &[u8]) -> Block {
        let (source, block) = (self.memory(contents.len()), self.memory(contents.len()));
        write(source.region, contents);
        self.copy(source.region, block.region);
        self.later(source);
        block
    }

    /// Copies on the computation's stream.
    fn copy(&self, from: Region, to: Region) {
        if from.len_bytes > 0 {
            // SAFETY: the test keeps both, or gives them to `later`.
            unsafe { self.compute.copy(to.address, from.address, from.len_bytes) }.unwrap();
        }
    }

    /// Frees memory when the computation has come to here.
    fn later(&self, block: Block) {
        let (done, compute, gpu) = (self.events.take().unwrap(), self.compute.clone(), self.gpu.clone());
        compute.record(&done).unwrap();
        std::thread::spawn(move || {
            gpu.bind().unwrap();
            wait(|| done.is_reached().unwrap());
            drop((block, compute));
        });
    }

    /// What the computation sees in memory, once it has come to here.
    fn read(&self, region: Region) -> Vec<u8> {
        let copy = self.memory(region.len_bytes);
        self.copy(region, copy.region);
        self.sync();
        read(copy.region)
    }

    fn sync(&self) {
        let done = self.events.take().unwrap();
        self.compute.record(&done).unwrap();
        wait(|| done.is_reached().unwrap());
    }

    /// What waits for the computation as it is now.
    fn fence(&self) -> Fence {
        let (done, compute) = (self.events.take().unwrap(), self.compute.clone());
        compute.record(&done).unwrap();
        Box::new(move || {
            wait(|| done.is_reached().unwrap());
            Ok(())
        })
    }

    fn call(&self, operation: DeviceOperation, dtype: DType, keep: impl Any + Send) -> DeviceCall {
        let ends = self.ends.clone();
        DeviceCall {
            operation,
            dtype,
            keep: Box::new(keep),
            on_start: Box::new(|| ()),
            on_end: Box::new(move |_| {
                ends.fetch_add(1, Ordering::SeqCst);
            }),
        }
    }

    fn start(
        &self,
        operation: DeviceOperation,
        dtype: DType,
        keep: impl Any + Send,
    ) -> Result<Flight, Failure> {
        self.nccl.start(self.call(operation, dtype, keep), || self.fence())
    }

    /// One reduction of four numbers, from its start to what the computation sees of it.
    fn reduce(&self) -> Result<Vec<u8>, Failure> {
        use crate::transport::ReduceOp::Sum;
        let block = self.computed(&values::of(DType::F32, self.rank, 4));
        let region = block.region;
        let operation = DeviceOperation::AllReduce { send: region, recv: region, op: Sum };
        let block = Arc::new(block);
        let flight = self.start(operation, DType::F32, block.clone());
        if let Err(failure) = flight.and_then(|flight| flight.join()) {
            // The computation may still have to come to the memory, which is this test's to keep.
            self.sync();
            return Err(failure);
        }
        let seen = self.read(region);
        // With context events the computation goes on after a failure, with whatever the memory holds.
        self.nccl.shared.progress.failure().map_or(Ok(seen), Err)
    }
}

/// Memory of a GPU with its extent.
#[derive(Debug)]
struct Block {
    region: Region,
    #[expect(dead_code, reason = "freed with the block")]
    memory: Memory,
}

/// Waits for something that takes as long as a stream dawdles.
fn wait(mut is_there: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !is_there() {
        assert!(Instant::now() < limit, "it does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Writes to memory that no stream uses.
fn write(region: Region, bytes: &[u8]) {
    assert_eq!(region.len_bytes, bytes.len());
    // SAFETY: the double's device memory is memory of the host, and the region was allocated.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.address as *mut u8, bytes.len()) };
}

/// Reads memory that no stream uses.
fn read(region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes];
    // SAFETY: as in `write`.
    unsafe { std::ptr::copy_nonoverlapping(region.address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}
