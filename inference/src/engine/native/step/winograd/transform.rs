//! The transforms of Winograd's minimal filtering, `F(2x2, 3x3)` and `F(4x4, 3x3)`.
//!
//! `Y = A^T [(G g G^T) * (B^T d B)] A` computes a tile `Y` of a 3x3 convolution from a patch `d` two pixels larger, with
//! one product for each value of the patch. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
//! <https://arxiv.org/abs/1509.09308>.

use super::super::super::simd::Simd;

/// The largest patch is 6x6.
pub(super) const MOST: usize = 6;

/// `B^T d` of one column; `SIDE` values of the patch count.
#[inline(always)]
pub(super) unsafe fn input<S: Simd, const SIDE: usize>(d: [S::V; MOST]) -> [S::V; MOST] {
    // SAFETY: the caller has the instructions of S.
    unsafe {
        let mut out = d;
        if SIDE == 4 {
            out[0] = S::sub(d[0], d[2]);
            out[1] = S::add(d[1], d[2]);
            out[2] = S::sub(d[2], d[1]);
            out[3] = S::sub(d[1], d[3]);
        } else {
            let [two, four, minus_four, minus_five] = [2., 4., -4., -5.].map(|factor| S::splat(factor));
            out[0] = S::fma(d[0], four, S::fma(d[2], minus_five, d[4]));
            let (even, odd) = (S::fma(d[2], minus_four, d[4]), S::fma(d[1], minus_four, d[3]));
            out[1] = S::add(even, odd);
            out[2] = S::sub(even, odd);
            let (even, odd) = (S::sub(d[4], d[2]), S::mul(S::sub(d[3], d[1]), two));
            out[3] = S::add(even, odd);
            out[4] = S::sub(even, odd);
            out[5] = S::fma(d[1], four, S::fma(d[3], minus_five, d[5]));
        }
        out
    }
}

/// `A^T m` of one column; the first `SIDE - 2` values count.
#[inline(always)]
pub(super) unsafe fn output<S: Simd, const SIDE: usize>(m: [S::V; MOST]) -> [S::V; MOST] {
    // SAFETY: the caller has the instructions of S.
    unsafe {
        let mut out = m;
        let (sum, difference) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        if SIDE == 4 {
            out[0] = S::add(m[0], sum);
            out[1] = S::sub(difference, m[3]);
        } else {
            let [two, four, eight] = [2., 4., 8.].map(|factor| S::splat(factor));
            let (outer_sum, outer_difference) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            out[0] = S::add(S::add(m[0], sum), outer_sum);
            out[1] = S::fma(outer_difference, two, difference);
            out[2] = S::fma(outer_sum, four, sum);
            out[3] = S::add(S::fma(outer_difference, eight, difference), m[5]);
        }
        out
    }
}

/// `G g G^T` of a kernel, in f64; the first `side * side` values count.
pub(super) fn weights(side: usize, g: [[f64; 3]; 3]) -> [[f64; MOST]; MOST] {
    const F2: [[f64; 3]; 4] = [[1., 0., 0.], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0., 0., 1.]];
    const F4: [[f64; 3]; 6] = [
        [1. / 4., 0., 0.],
        [-1. / 6., -1. / 6., -1. / 6.],
        [-1. / 6., 1. / 6., -1. / 6.],
        [1. / 24., 1. / 12., 1. / 6.],
        [1. / 24., -1. / 12., 1. / 6.],
        [0., 0., 1.],
    ];
    let matrix: &[[f64; 3]] = if side == 4 { &F2 } else { &F4 };
    let mut out = [[0.; MOST]; MOST];
    for (out, down) in out.iter_mut().zip(matrix) {
        for (out, right) in out.iter_mut().zip(matrix) {
            for (g, down) in g.iter().zip(down) {
                *out += down * g.iter().zip(right).map(|(g, right)| g * right).sum::<f64>();
            }
        }
    }
    out
}
