//! Shapes that the graph computes itself, as exporters write them before a `Reshape`.

/// One number of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// The number of images.
    Batch,
    Known(i64),
}

/// Most numbers of a shape.
pub(super) const MAX_SIZES: usize = 16;

/// Refuses more numbers than a shape has: they are copied with every use, and double with each node that joins a shape
/// with itself.
pub(super) fn check(numbers: usize) -> Result<(), String> {
    if numbers > MAX_SIZES { Err(format!("a shape has at most {MAX_SIZES} sizes here")) } else { Ok(()) }
}

/// A place counted from the start, or from the end where it is negative.
pub(super) fn place(at: i64, len: usize) -> Result<usize, String> {
    let from_start = if at < 0 { at.checked_add_unsigned(len as u64) } else { Some(at) };
    let place = from_start.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < len);
    place.ok_or_else(|| format!("{at} is none of {len} places"))
}

/// The numbers at these places.
pub(super) fn gather(from: &[Size], places: &[i64]) -> Result<Vec<Size>, String> {
    check(places.len())?;
    places.iter().map(|&at| Ok(from[place(at, from.len())?])).collect()
}

/// What a `Reshape` of an image to these sizes is: the rank it gives, where it leaves the values in their order by image.
///
/// `from` is `[batch, channels, height, width]` or `[batch, channels]` of the image.
pub(super) fn reshape(
    from: &[Size],
    to: &[Size],
    batch: Option<usize>,
    zero_copies: bool,
) -> Result<Vec<i64>, String> {
    let total = known(&from[1..]).ok_or("the shape before it is not known")?;
    let mut sizes = Vec::with_capacity(to.len());
    for (at, &size) in to.iter().enumerate() {
        sizes.push(match size {
            Size::Known(0) if zero_copies => {
                *from.get(at).ok_or("its shape copies a size that is not there")?
            }
            size => size,
        });
    }
    let Some((&first, rest)) = sizes.split_first() else {
        return Err("it gives a single number".to_owned());
    };
    let infers = rest.iter().filter(|&&size| size == Size::Known(-1)).count();
    let fixed = batch.and_then(|batch| i64::try_from(batch).ok());
    let keeps_batch = match first {
        Size::Batch => true,
        Size::Known(-1) => infers == 0,
        Size::Known(size) => fixed == Some(size),
    };
    if !keeps_batch {
        return Err("it mixes the images of a batch".to_owned());
    }
    let others: Vec<_> = rest.iter().copied().filter(|&size| size != Size::Known(-1)).collect();
    let product = known(&others).ok_or("it mixes the images of a batch")?;
    let infer = if product == 0 { 0 } else { total / product };
    let result: Vec<i64> =
        rest.iter().map(|&size| if let Size::Known(size @ 0..) = size { size } else { infer }).collect();
    match (infers, result.iter().try_fold(1_i64, |product, &size| product.checked_mul(size))) {
        (0 | 1, Some(product)) if product == total => Ok(result),
        _ => Err(format!("it makes an image of {result:?} of one of {total} values")),
    }
}

/// The product of numbers that are all known and not negative.
fn known(sizes: &[Size]) -> Option<i64> {
    sizes.iter().try_fold(1_i64, |product, &size| match size {
        Size::Known(size @ 0..) => product.checked_mul(size),
        _ => None,
    })
}
