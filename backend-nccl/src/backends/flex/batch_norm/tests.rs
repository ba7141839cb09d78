use burn::tensor::{Bytes, DType, Shape, Slice};
use burn_flex::{FlexTensor, Layout};
use half::{bf16, f16};

use super::{gradient_sums, input_gradient, normalize, statistics};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Sizes around the lanes, the columns and the blocks of the kernels, in every rank.
const SHAPES: &[&[usize]] = &[
    &[1, 1],
    &[5, 1],
    &[1, 7],
    &[33, 7],
    &[17, 530],
    &[2, 3, 5],
    &[3, 4, 31],
    &[3, 4, 4, 4],
    &[2, 70, 2, 2],
    &[19, 5, 1, 1],
    &[1, 4, 8, 8],
    &[4, 3, 8, 16],
    &[2, 5, 11, 12],
    &[3, 2, 43, 97],
    &[2, 2, 3, 4, 5],
    &[2, 3, 6, 5, 7],
];

/// How a tensor lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Contiguous,
    ChannelsOutermost,
    ChannelsInnermost,
    /// Every other position of the last dimension of a larger tensor.
    Sliced,
    Flipped,
}

const MEMORIES: [Memory; 5] = [
    Memory::Contiguous,
    Memory::ChannelsOutermost,
    Memory::ChannelsInnermost,
    Memory::Sliced,
    Memory::Flipped,
];

/// Noise around `mean` with a standard deviation of about one, from a linear congruential generator.
fn noise(count: usize, seed: u64, mean: f64) -> Vec<f64> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / f64::from(1u32 << 31) - 0.5
    };
    (0..count).map(|_| mean + (uniform() + uniform() + uniform()) * 2.0).collect()
}

fn stored(values: &[f64], dtype: DType) -> Bytes {
    match dtype {
        DType::F32 => Bytes::from_elems(values.iter().map(|&v| v as f32).collect()),
        DType::F64 => Bytes::from_elems(values.to_vec()),
        DType::F16 => Bytes::from_elems(values.iter().map(|&v| f16::from_f64(v)).collect()),
        DType::BF16 => Bytes::from_elems(values.iter().map(|&v| bf16::from_f64(v)).collect()),
        _ => unreachable!(),
    }
}

/// A tensor of the values, some of which are rounded when they are stored: read them back before use.
fn tensor(values: &[f64], shape: &[usize], dtype: DType, memory: Memory) -> FlexTensor {
    let rank = shape.len();
    let contiguous =
        FlexTensor::new(stored(values, dtype), Layout::contiguous(Shape::from(shape.to_vec())), dtype);
    let through = |order: Vec<usize>| {
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(at, &dim)| back[dim] = at);
        let moved = contiguous.clone().with_layout(contiguous.layout().permute(&order)).to_contiguous();
        let layout = moved.layout().permute(&back);
        moved.with_layout(layout)
    };
    match memory {
        Memory::Contiguous => contiguous,
        Memory::ChannelsOutermost => through([1, 0].into_iter().chain(2..rank).collect()),
        Memory::ChannelsInnermost => through([0].into_iter().chain(2..rank).chain([1]).collect()),
        Memory::Sliced => {
            let wide: Vec<f64> = values.iter().flat_map(|&v| [f64::NAN, v]).collect();
            let mut larger = shape.to_vec();
            larger[rank - 1] *= 2;
            let all = tensor(&wide, &larger, dtype, Memory::Contiguous);
            let mut slices = vec![Slice::full(); rank];
            slices[rank - 1] = Slice::new(1, None, 2);
            let (layout, _) = all.layout().slice(&slices);
            all.with_layout(layout)
        }
        Memory::Flipped => {
            let flipped = contiguous.clone().with_layout(contiguous.layout().flip(&[0, 1])).to_contiguous();
            let layout = flipped.layout().flip(&[0, 1]);
            flipped.with_layout(layout)
        }
    }
}

fn values(tensor: &FlexTensor) -> Vec<f64> {
    let tensor = tensor.to_contiguous();
    match tensor.dtype() {
        DType::F32 => tensor.storage::<f32>().iter().map(|&v| f64::from(v)).collect(),
        DType::F64 => tensor.storage::<f64>().to_vec(),
        DType::F16 => tensor.storage::<f16>().iter().map(|v| v.to_f64()).collect(),
        DType::BF16 => tensor.storage::<bf16>().iter().map(|v| v.to_f64()).collect(),
        _ => unreachable!(),
    }
}

/// A vector over the channels, in the type of the statistics.
fn vector(values: &[f64], dtype: DType) -> FlexTensor {
    let dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    tensor(values, &[values.len()], dtype, Memory::Contiguous)
}

/// The channel of each element in logical order.
fn channels(shape: &[usize]) -> Vec<usize> {
    let spatial: usize = shape[2..].iter().product();
    (0..shape.iter().product()).map(|index| index / spatial % shape[1]).collect()
}

/// The sum per channel of what `term` makes of each index.
fn sum_per_channel(shape: &[usize], term: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; shape[1]];
    channels(shape).into_iter().enumerate().for_each(|(index, channel)| sums[channel] += term(index));
    sums
}

fn mean_and_squares(shape: &[usize], x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let per_channel = (x.len() / shape[1]) as f64;
    let mean: Vec<f64> = sum_per_channel(shape, |i| x[i]).iter().map(|sum| sum / per_channel).collect();
    let channel = channels(shape);
    let squares = sum_per_channel(shape, |i| (x[i] - mean[channel[i]]).powi(2));
    (mean, squares)
}

fn assert_close(found: &FlexTensor, expected: &[f64], tolerance: f64, what: &str) {
    let found = values(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= bound, "{what}, value {index}: {found} instead of {expected}");
    }
}

/// How far a stored result of this type may be off, relative to its size.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

fn check(shape: &[usize], dtype: DType, [of_x, of_dy]: [Memory; 2], mean_of_x: f64) {
    let what = format!("{shape:?} {dtype:?} {of_x:?} {of_dy:?}");
    let count: usize = shape.iter().product();
    let features = shape[1];
    let x = tensor(&noise(count, 1, mean_of_x), shape, dtype, of_x);
    let dy = tensor(&noise(count, 2, 0.1), shape, dtype, of_dy);
    let (x_values, dy_values) = (values(&x), values(&dy));
    let channel = channels(shape);
    // The mean itself is stored to so many digits, which the distances between blocks then have too.
    let exact = if dtype == DType::F64 { 1e-12 * mean_of_x.max(1.0) } else { 4e-6 };

    let (mean, squares) = mean_and_squares(shape, &x_values);
    let found = statistics(x.clone());
    assert_close(&found.0, &mean, exact, &format!("mean {what}"));
    assert_close(&found.1, &squares, exact, &format!("squares {what}"));

    let [mean, scale, shift] = [3, 4, 5].map(|seed| vector(&noise(features, seed, 0.5), dtype));
    let mean = if mean_of_x == 0.0 { mean } else { found.0 };
    let [m, a, b] = [&mean, &scale, &shift].map(values);
    let y = normalize(x.clone(), mean.clone(), scale.clone(), shift.clone());
    assert_eq!((y.dtype(), y.layout().shape().to_vec()), (dtype, shape.to_vec()), "{what}");
    let expected: Vec<f64> =
        (0..count).map(|i| (x_values[i] - m[channel[i]]) * a[channel[i]] + b[channel[i]]).collect();
    assert_close(&y, &expected, rounding(dtype), &format!("y {what}"));

    let found = gradient_sums(x.clone(), dy.clone(), mean.clone());
    let terms = (count / features) as f64;
    let sums = sum_per_channel(shape, |i| dy_values[i]);
    let products = sum_per_channel(shape, |i| dy_values[i] * (x_values[i] - m[channel[i]]));
    assert_close(&found.0, &sums, exact * terms.sqrt(), &format!("sum {what}"));
    assert_close(&found.1, &products, exact * terms.sqrt(), &format!("product {what}"));

    let coefficients = [mean, scale, shift.clone(), shift];
    let shared = input_gradient(x.clone(), dy.clone(), coefficients.clone());
    // The only owner of the gradient may see it overwritten.
    let dx = input_gradient(x, dy, coefficients);
    assert!(values(&dx) == values(&shared), "{what}");
    assert_eq!((dx.dtype(), dx.layout().shape().to_vec()), (dtype, shape.to_vec()), "{what}");
    let of = |i: usize| {
        let c = channel[i];
        a[c] * (dy_values[i] - b[c] - (x_values[i] - m[c]) * b[c])
    };
    assert_close(&dx, &(0..count).map(of).collect::<Vec<_>>(), rounding(dtype) * 4.0, &format!("dx {what}"));
}

#[test]
fn every_shape_type_and_layout_follows_the_formulas() {
    for shape in SHAPES {
        for dtype in DTYPES {
            for of_x in MEMORIES {
                for of_dy in MEMORIES {
                    check(shape, dtype, [of_x, of_dy], 0.0);
                }
            }
        }
    }
}

#[test]
fn a_mean_far_from_zero_costs_no_accuracy() {
    for shape in SHAPES.iter().filter(|shape| shape.iter().product::<usize>() > shape[1]) {
        for of_x in MEMORIES {
            check(shape, DType::F32, [of_x, Memory::Contiguous], 1e4);
            check(shape, DType::F64, [of_x, Memory::Contiguous], 1e4);
        }
    }
}

#[test]
fn the_result_lies_in_memory_as_the_input_does() {
    let shape = [3, 5, 4, 8];
    let [a, b, c] = [1, 2, 3].map(|seed| vector(&noise(5, seed, 0.0), DType::F32));
    for memory in [Memory::Contiguous, Memory::ChannelsOutermost, Memory::ChannelsInnermost] {
        let x = tensor(&noise(480, 1, 0.0), &shape, DType::F32, memory);
        let y = normalize(x.clone(), a.clone(), b.clone(), c.clone());
        assert_eq!(y.layout(), x.layout());
        let (layout, memory) = (y.layout().clone(), y.bytes().as_ptr());
        let dx = input_gradient(x, y, [a.clone(), b.clone(), c.clone(), a.clone()]);
        assert_eq!(
            (dx.layout(), dx.bytes().as_ptr()),
            (&layout, memory),
            "overwrites a gradient that is its own"
        );
    }
    let x = tensor(&noise(480, 1, 0.0), &shape, DType::F32, Memory::Sliced);
    assert!(normalize(x, a, b, c).layout().is_contiguous());
}

#[test]
fn an_expanded_gradient_is_read_as_if_it_were_stored() {
    let shape = [3, 2, 4, 4];
    let x = tensor(&noise(96, 1, 0.0), &shape, DType::F32, Memory::Contiguous);
    let one = tensor(&[0.25], &[1], DType::F32, Memory::Contiguous);
    let dy = one.with_layout(Layout::new(Shape::from(shape), vec![0; 4], 0));
    let mean = vector(&[0.0, 0.0], DType::F32);
    let (sum, product) = gradient_sums(x.clone(), dy, mean);
    let x = values(&x);
    assert_close(&sum, &[12.0, 12.0], 1e-6, "sum");
    assert_close(&product, &sum_per_channel(&shape, |i| 0.25 * x[i]), 1e-6, "product");
}

#[test]
fn an_empty_batch_gives_zeros_and_empty_tensors() {
    for dtype in DTYPES {
        for shape in [&[0, 3][..], &[0, 3, 4, 4], &[2, 3, 0, 4]] {
            for memory in MEMORIES {
                let empty = tensor(&[], shape, dtype, memory);
                let zeros = vector(&[0.0; 3], dtype);
                let (mean, squares) = statistics(empty.clone());
                assert_eq!([values(&mean), values(&squares)], [[0.0; 3]; 2]);
                let (sum, product) = gradient_sums(empty.clone(), empty.clone(), zeros.clone());
                assert_eq!([values(&sum), values(&product)], [[0.0; 3]; 2]);
                let y = normalize(empty.clone(), zeros.clone(), zeros.clone(), zeros.clone());
                assert_eq!(y.layout().shape().to_vec(), shape);
                let coefficients = [(); 4].map(|()| zeros.clone());
                let dx = input_gradient(empty.clone(), empty, coefficients);
                assert_eq!((dx.layout().shape().to_vec(), dx.dtype()), (shape.to_vec(), dtype));
            }
        }
    }
}

#[test]
fn equal_values_have_no_variance() {
    for value in [0.0, 1.0, -3.7, 1e4] {
        let (mean, squares) =
            statistics(tensor(&vec![value; 3 * 5000], &[50, 3, 100], DType::F32, Memory::Contiguous));
        assert_close(&mean, &[f64::from(value as f32); 3], 0.0, "mean");
        assert_close(&squares, &[0.0; 3], 1e-6, "squares");
    }
}

#[test]
fn a_value_that_is_not_finite_shows_in_its_channel_only() {
    for bad in [f64::NAN, f64::INFINITY] {
        for shape in [[4, 3, 2], [4, 3, 200]] {
            let mut x = noise(shape.iter().product(), 1, 0.0);
            x[shape[2]] = bad;
            let (mean, squares) = statistics(tensor(&x, &shape, DType::F32, Memory::Contiguous));
            let finite =
                |tensor: &FlexTensor| -> Vec<bool> { values(tensor).iter().map(|v| v.is_finite()).collect() };
            assert_eq!(finite(&mean), [true, false, true]);
            assert_eq!(finite(&squares), [true, false, true]);
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for shape in [[8, 130, 32, 33], [64, 1100, 4, 4], [900, 1200, 1, 1], [2, 3, 430, 430]] {
        for memory in [Memory::Contiguous, Memory::ChannelsOutermost, Memory::ChannelsInnermost] {
            let count: usize = shape.iter().product();
            let x = tensor(&noise(count, 1, 3.0), &shape, DType::F32, memory);
            let dy = tensor(&noise(count, 2, 0.0), &shape, DType::F32, Memory::Contiguous);
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let (mean, squares) = statistics(x.clone());
                    let (sum, product) = gradient_sums(x.clone(), dy.clone(), mean.clone());
                    let y = normalize(x.clone(), mean.clone(), squares.clone(), mean.clone());
                    let coefficients = [mean.clone(), squares.clone(), sum.clone(), product.clone()];
                    let dx = input_gradient(x.clone(), dy.clone(), coefficients);
                    [mean, squares, sum, product, y, dx].map(|tensor| tensor.bytes().to_vec())
                })
            };
            let alone = run(1);
            assert!(alone == run(2) && alone == run(5), "{shape:?} {memory:?}");
        }
    }
}
