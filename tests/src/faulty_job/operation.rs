//! One random collective and the result that it must have.

use burn_nccl::{DType, Error, ProcessGroup, ReduceOp};

use super::{BYTES, Random};

/// The largest buffers have two to this power elements.
const LARGEST_BITS: u64 = 17;
/// How many all-reduces run on the communication thread at once.
const ASYNCHRONOUS: u64 = 3;

/// A collective, the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    kind: Kind,
    dtype: DType,
    reduce: ReduceOp,
    elements: usize,
    root: usize,
    world_size: usize,
    /// Makes the values of each operation others.
    salt: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    AllReduceAsync,
    Broadcast,
    AllGather,
    AllGatherBytes,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Ring,
    Message,
    Barrier,
}

const KINDS: [Kind; 14] = [
    Kind::AllReduce,
    Kind::AllReduce,
    Kind::AllReduceAsync,
    Kind::AllReduceAsync,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::AllGatherBytes,
    Kind::ReduceScatter,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllToAll,
    Kind::Ring,
    Kind::Message,
    Kind::Barrier,
];
/// The reductions whose results are exact in every type for a few small numbers.
const REDUCTIONS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];

impl Operation {
    /// The operation `index` of the job with this seed.
    pub fn new(seed: u64, index: u64, world_size: usize) -> Self {
        let mut random = Random::new(seed, 1 + index);
        Self {
            kind: random.one_of(&KINDS),
            dtype: random.one_of(&DType::ALL),
            reduce: random.one_of(&REDUCTIONS),
            elements: random.magnitude(LARGEST_BITS) as usize,
            root: random.below(world_size as u64) as usize,
            world_size,
            salt: index as usize,
        }
    }

    /// Runs it; says what is wrong with the result, if anything is.
    ///
    /// # Errors
    /// What the group returns.
    pub fn run(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let rank = group.rank();
        match self.kind {
            Kind::Barrier => group.barrier().map(|()| None),
            Kind::AllReduce => {
                let mut buffer = self.input(rank, self.elements);
                group.all_reduce(&mut buffer, self.dtype, self.reduce)?;
                Ok(difference(&buffer, &self.reduced(0..self.elements)))
            }
            Kind::AllReduceAsync => self.run_asynchronously(group),
            Kind::AllGatherBytes => {
                let own = |rank: usize| vec![(rank + self.salt) as u8; self.elements / (rank + 1)];
                let values = group.all_gather_bytes(&own(rank))?;
                let right = values == (0..self.world_size).map(own).collect::<Vec<_>>();
                Ok((!right).then(|| "the gathered values differ".to_owned()))
            }
            Kind::Gather => self.gather(group),
            Kind::Scatter => self.scatter(group),
            Kind::Message => self.message(group),
            Kind::Broadcast | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll | Kind::Ring => {
                self.move_parts(group)
            }
        }
    }

    fn move_parts(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let rank = group.rank();
        match self.kind {
            Kind::Broadcast => {
                let mut buffer = self.input(rank, self.elements);
                group.broadcast(&mut buffer, self.dtype, self.root)?;
                Ok(difference(&buffer, &self.input(self.root, self.elements)))
            }
            Kind::AllGather => {
                let send = self.input(rank, self.elements);
                let mut recv = vec![0; send.len() * self.world_size];
                group.all_gather(&send, &mut recv, self.dtype)?;
                let expected: Vec<u8> =
                    (0..self.world_size).flat_map(|rank| self.input(rank, self.elements)).collect();
                Ok(difference(&recv, &expected))
            }
            Kind::ReduceScatter => {
                let send = self.input(rank, self.elements * self.world_size);
                let mut recv = vec![0; self.elements * self.dtype.size_bytes()];
                group.reduce_scatter(&send, &mut recv, self.dtype, self.reduce)?;
                let part = rank * self.elements..(rank + 1) * self.elements;
                Ok(difference(&recv, &self.reduced(part)))
            }
            Kind::AllToAll => {
                let send = self.input(rank, self.elements * self.world_size);
                let mut recv = vec![0; send.len()];
                group.all_to_all(&send, &mut recv, self.dtype)?;
                let expected: Vec<u8> = (0..self.world_size).flat_map(|from| self.part(from, rank)).collect();
                Ok(difference(&recv, &expected))
            }
            Kind::Ring => {
                let (to, from) =
                    ((rank + 1) % self.world_size, (rank + self.world_size - 1) % self.world_size);
                let send = self.input(rank, self.elements);
                let mut recv = vec![0; send.len()];
                group.send_recv(&send, to, &mut recv, from, self.dtype)?;
                Ok(difference(&recv, &self.input(from, self.elements)))
            }
            _ => Ok(None),
        }
    }

    fn gather(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let send = self.input(group.rank(), self.elements);
        let mut recv = (group.rank() == self.root).then(|| vec![0; send.len() * self.world_size]);
        group.gather(&send, recv.as_deref_mut(), self.dtype, self.root)?;
        let Some(recv) = recv else { return Ok(None) };
        let expected: Vec<u8> =
            (0..self.world_size).flat_map(|rank| self.input(rank, self.elements)).collect();
        Ok(difference(&recv, &expected))
    }

    fn scatter(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let rank = group.rank();
        let send = (rank == self.root).then(|| self.input(rank, self.elements * self.world_size));
        let mut recv = vec![0; self.elements * self.dtype.size_bytes()];
        group.scatter(send.as_deref(), &mut recv, self.dtype, self.root)?;
        Ok(difference(&recv, &self.part(self.root, rank)))
    }

    /// From the root to the rank after it; the others have nothing to do.
    fn message(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let (rank, to) = (group.rank(), (self.root + 1) % self.world_size);
        let send = self.input(self.root, self.elements);
        if rank == self.root {
            group.send(&send, self.dtype, to)?;
        } else if rank == to {
            let mut recv = vec![0; send.len()];
            group.recv(&mut recv, self.dtype, self.root)?;
            return Ok(difference(&recv, &send));
        }
        Ok(None)
    }

    fn run_asynchronously(&self, group: &ProcessGroup) -> Result<Option<String>, Error> {
        let start = |_| {
            let buffer = self.input(group.rank(), self.elements);
            group.all_reduce_async(buffer, self.dtype, self.reduce)
        };
        let works: Vec<_> = (0..ASYNCHRONOUS).map(start).collect();
        let expected = self.reduced(0..self.elements);
        for work in works {
            if let Some(wrong) = difference(&work.wait()?, &expected) {
                return Ok(Some(wrong));
            }
        }
        Ok(None)
    }

    /// The value of an element of a rank: 1 to 4.
    fn value(&self, rank: usize, index: usize) -> usize {
        (rank * 3 + index + index / 5 + self.salt) % 4 + 1
    }

    fn input(&self, rank: usize, elements: usize) -> Vec<u8> {
        encode(self.dtype, (0..elements).map(|index| self.value(rank, index)))
    }

    /// What rank `from` gives to rank `to` of the parts of its input.
    fn part(&self, from: usize, to: usize) -> Vec<u8> {
        let part = to * self.elements..(to + 1) * self.elements;
        encode(self.dtype, part.map(|index| self.value(from, index)))
    }

    fn reduced(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let reduced = |index| {
            let values = (0..self.world_size).map(|rank| self.value(rank, index));
            match self.reduce {
                ReduceOp::Min => values.min(),
                ReduceOp::Max => values.max(),
                _ => Some(values.sum()),
            }
        };
        encode(self.dtype, range.map(|index| reduced(index).unwrap_or(0)))
    }
}

/// Small whole numbers from 1 in any type. The half types are put together by hand, so that no conversion is shared
/// with the code under test.
fn encode(dtype: DType, values: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.size_hint().0 * dtype.size_bytes());
    for value in values {
        match dtype {
            DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
            DType::F64 => bytes.extend((value as f64).to_ne_bytes()),
            DType::F16 => {
                let exponent = value.ilog2();
                let fraction = (value - (1 << exponent)) << (10 - exponent);
                bytes.extend((((15 + exponent as usize) << 10 | fraction) as u16).to_ne_bytes());
            }
            DType::BF16 => bytes.extend((((value as f32).to_bits() >> 16) as u16).to_ne_bytes()),
            DType::I32 => bytes.extend((value as i32).to_ne_bytes()),
            DType::I64 => bytes.extend((value as i64).to_ne_bytes()),
            BYTES => bytes.push(value as u8),
        }
    }
    bytes
}

fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found == expected {
        return None;
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let wrong = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
    Some(format!("{wrong} bytes of {} differ, the first at {at:?}", expected.len()))
}
