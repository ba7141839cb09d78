//! How far two sets of logits are from each other.

use burn_nccl_inference::WeightType;

/// Batch sizes to compare with: one alone, an odd one, and a full one.
pub(crate) const BATCHES: [usize; 3] = [1, 3, 8];

/// The difference of some logits from those of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Difference {
    /// Largest distance of a logit from the reference's; infinite where one is not finite.
    pub(crate) absolute: f64,
    /// Largest absolute logit of the reference.
    pub(crate) scale: f64,
    /// Images whose most probable class is the reference's.
    pub(crate) agreeing: usize,
    /// Images.
    pub(crate) images: usize,
}

impl Difference {
    /// Compares rows of `classes` logits.
    pub(crate) fn of(reference: &[f32], found: &[f32], classes: usize) -> Self {
        let mut difference = Self { images: reference.len() / classes.max(1), ..Self::default() };
        if reference.len() != found.len() {
            return Self { absolute: f64::INFINITY, ..difference };
        }
        for (&reference, &found) in reference.iter().zip(found) {
            let apart = (f64::from(found) - f64::from(reference)).abs();
            // `max` would pass over a NaN.
            let apart = if apart.is_finite() { apart } else { f64::INFINITY };
            difference.absolute = difference.absolute.max(apart);
            difference.scale = difference.scale.max(f64::from(reference).abs());
        }
        let rows = reference.chunks_exact(classes.max(1)).zip(found.chunks_exact(classes.max(1)));
        difference.agreeing = rows.filter(|(reference, found)| top1(reference) == top1(found)).count();
        difference
    }

    /// The difference over the images of both.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            absolute: self.absolute.max(other.absolute),
            scale: self.scale.max(other.scale),
            agreeing: self.agreeing + other.agreeing,
            images: self.images + other.images,
        }
    }

    /// The largest distance in parts of the reference's largest logit.
    pub(crate) fn relative(&self) -> f64 {
        match self.absolute {
            0.0 => 0.0,
            f64::INFINITY => f64::INFINITY,
            absolute => absolute / self.scale,
        }
    }
}

/// The most probable class; of equals the first.
pub(crate) fn top1(logits: &[f32]) -> Option<usize> {
    let classes = logits.iter().enumerate();
    classes.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a))).map(|(class, _)| class)
}

/// How far logits may be from those of f32 weights, in parts of the largest logit.
///
/// Of f32 only the order of sums differs. f16 keeps 11 bits of each weight, and int8 8 at most: their errors add up over
/// the layers as in a random walk.
pub(crate) const fn tolerance(weights: WeightType) -> f64 {
    match weights {
        WeightType::F32 => 1e-4,
        WeightType::F16 => 1e-2,
        WeightType::Int8 => 0.2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_the_largest_one_in_parts_of_the_largest_logit() {
        let found = Difference::of(&[1.0, -4.0, 0.5, 2.0], &[1.5, -4.0, 0.5, 0.0], 2);
        assert_eq!((found.absolute, found.relative()), (2.0, 0.5));
        assert_eq!((found.agreeing, found.images), (1, 2));
    }

    #[test]
    fn what_is_not_finite_or_not_as_long_differs_infinitely() {
        for found in [&[1.0, f32::NAN][..], &[f32::NAN, 1.0], &[1.0, f32::INFINITY], &[1.0]] {
            assert_eq!(Difference::of(&[1.0, 2.0], found, 2).relative(), f64::INFINITY, "{found:?}");
        }
        assert_eq!(Difference::of(&[f32::NAN, 2.0], &[f32::NAN, 2.0], 2).relative(), f64::INFINITY);
    }

    #[test]
    fn equal_logits_differ_by_nothing_even_if_all_are_zero() {
        assert_eq!(Difference::of(&[0.0; 4], &[0.0; 4], 2).relative(), 0.0);
        assert_eq!(Difference::of(&[0.0; 4], &[0.1; 4], 2).relative(), f64::INFINITY);
    }

    #[test]
    fn joined_differences_are_those_of_all_images() {
        let (a, b) =
            (Difference::of(&[8.0, 1.0], &[8.0, 2.0], 2), Difference::of(&[0.0, 1.0], &[1.0, 0.0], 2));
        let joined = a.join(b);
        assert_eq!((joined.absolute, joined.scale, joined.relative()), (1.0, 8.0, 0.125));
        assert_eq!((joined.agreeing, joined.images), (1, 2));
    }

    #[test]
    fn of_equal_logits_the_first_class_is_meant() {
        assert_eq!(top1(&[0.0, 3.0, 3.0]), Some(1));
        assert_eq!(top1(&[]), None);
    }
}
