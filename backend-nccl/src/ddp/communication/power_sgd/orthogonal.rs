//! Makes the columns of a thin matrix orthonormal.

/// A column that loses more than half of itself in a second round was within the span of those before it.
const LOSS: f64 = 0.5;
/// Rounds that are tried. "Twice is enough" (Kahan) unless what is left is at the limit of f32.
const ROUNDS: usize = 4;

/// Orthonormalises `columns` of `len` elements each, one after the other in memory, by Gram-Schmidt with a second round:
/// with one, a column that nearly depends on the others would keep a part of them, and the projection would count that
/// part twice. Sums are formed in f64. Each column is divided by its norm plus `epsilon`.
///
/// A column of zeros, or one of which rounding leaves nothing, becomes zero: it then adds nothing to the projection.
///
/// PyTorch takes one round for a rank of 1 or 2 and LAPACK's QR beyond; the columns span the same space, up to their signs,
/// which cancel in the projection.
pub(super) fn orthonormalise(columns: &mut [f32], len: usize, epsilon: f32) {
    for k in 0..columns.len() / len.max(1) {
        let (done, rest) = columns.split_at_mut(k * len);
        let column = &mut rest[..len];
        let norm = remove(column, done);
        let factor = if norm > 0.0 { 1.0 / (norm + f64::from(epsilon)) } else { 0.0 };
        column.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
}

/// Removes from `column` what lies in the span of the columns in `done`; returns the norm of the rest, 0 for none.
fn remove(column: &mut [f32], done: &[f32]) -> f64 {
    let mut norm = dot(column, column).sqrt();
    for _ in 0..ROUNDS {
        if done.is_empty() || norm == 0.0 {
            return norm;
        }
        for other in done.chunks_exact(column.len()) {
            let share = dot(column, other) as f32;
            column.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
        }
        let before = std::mem::replace(&mut norm, dot(column, column).sqrt());
        if norm > LOSS * before {
            return norm;
        }
    }
    0.0
}

/// In f64, in four sums in flight.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 4];
    let (mut a, mut b) = (a.chunks_exact(4), b.chunks_exact(4));
    for (a, b) in (&mut a).zip(&mut b) {
        for lane in 0..4 {
            lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest = a.remainder().iter().zip(b.remainder());
    lanes.iter().sum::<f64>() + rest.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * i as f32 * 0.13).sin()).collect()
    }

    fn assert_orthonormal(columns: &[f32], len: usize) {
        for (k, a) in columns.chunks_exact(len).enumerate() {
            for (l, b) in columns.chunks_exact(len).enumerate() {
                let expected = f64::from(u8::from(k == l));
                assert!((dot(a, b) - expected).abs() < 1e-6, "columns {k} and {l}: {}", dot(a, b));
            }
        }
    }

    #[test]
    fn columns_become_orthonormal_up_to_a_whole_square() {
        for (len, rank) in [(1, 1), (5, 2), (37, 4), (8, 8), (301, 32)] {
            let mut columns = wave(len * rank);
            orthonormalise(&mut columns, len, 0.0);
            assert_orthonormal(&columns, len);
        }
    }

    #[test]
    fn the_first_columns_span_is_kept() {
        let mut columns = wave(20);
        let before = columns.clone();
        orthonormalise(&mut columns, 10, 0.0);
        // The second column is a combination of its old self and the first one.
        let (first, second) = columns.split_at(10);
        let shares = [dot(&before[10..], first), dot(&before[10..], second)];
        for i in 0..10 {
            let again = shares[0] * f64::from(first[i]) + shares[1] * f64::from(second[i]);
            assert!((again - f64::from(before[10 + i])).abs() < 1e-6);
        }
    }

    #[test]
    fn columns_that_depend_on_others_are_orthogonal_to_them_or_zero() {
        let first = wave(50);
        let nearly: Vec<f32> =
            first.iter().zip(wave(100)[50..].iter()).map(|(a, b)| a * 3.0 + b * 1e-5).collect();
        let mut columns =
            [first.clone(), nearly, vec![0.0; 50], first.iter().map(|a| a * 2.0).collect()].concat();
        orthonormalise(&mut columns, 50, 0.0);
        assert_orthonormal(&columns[..100], 50);
        assert!(columns[100..150].iter().all(|value| *value == 0.0));
        let last = &columns[150..];
        let norm = dot(last, last);
        assert!(norm == 0.0 || (norm - 1.0).abs() < 1e-5);
        assert!(dot(last, &columns[..50]).abs() < 1e-5 && dot(last, &columns[50..100]).abs() < 1e-5);
    }

    #[test]
    fn a_small_number_is_added_to_the_norm() {
        let mut column = [3.0, 4.0];
        orthonormalise(&mut column, 2, 5.0);
        assert_eq!(column, [0.3, 0.4]);
        let mut tiny = [3e-30f32, 4e-30];
        orthonormalise(&mut tiny, 2, 0.0);
        assert!((tiny[0] - 0.6).abs() < 1e-6 && (tiny[1] - 0.8).abs() < 1e-6);
    }
}
