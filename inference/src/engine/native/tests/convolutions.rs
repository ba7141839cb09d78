//! Single convolutions of many shapes.

use super::assert_as_reference;
use super::builder::{Builder, ConvCase};

const CASE: ConvCase = ConvCase {
    input: [32, 9, 11],
    out: 48,
    kernel: [3, 3],
    stride: [1, 1],
    pads: [1; 4],
    dilation: [1, 1],
    groups: 1,
};

/// A convolution alone, behind one of a pixel so that its input is blocked where `planar` is false.
fn check(case: ConvCase, planar: bool) {
    let mut builder = Builder::new(case.input[0], case.input[1], case.input[2]);
    if !planar {
        builder.square(case.input[0], 1, 1);
    }
    builder.conv(&case, true).flatten();
    assert_as_reference(builder, &format!("{case:?}"));
}

#[test]
fn kernels_of_one_to_seven_pixels_are_as_in_f64() {
    for kernel in [1, 3, 5, 7] {
        for stride in [1, 2, 3] {
            let case = ConvCase { kernel: [kernel; 2], stride: [stride; 2], pads: [kernel / 2; 4], ..CASE };
            check(case, false);
            check(ConvCase { input: [3, 23, 17], out: 16, ..case }, true);
        }
    }
}

#[test]
fn any_number_of_channels_is_as_in_f64() {
    for (channels, out) in [(1, 1), (3, 5), (15, 17), (16, 16), (17, 31), (33, 47), (64, 10), (40, 80)] {
        for kernel in [1, 3] {
            let pads = [kernel / 2; 4];
            check(ConvCase { input: [channels, 6, 7], out, kernel: [kernel; 2], pads, ..CASE }, false);
            check(ConvCase { input: [channels, 6, 7], out, kernel: [kernel; 2], pads, ..CASE }, true);
        }
    }
}

#[test]
fn groups_are_as_in_f64() {
    for (channels, out, groups) in
        [(32, 32, 2), (32, 64, 32), (24, 24, 24), (24, 36, 4), (64, 64, 16), (48, 96, 3), (5, 10, 5)]
    {
        for planar in [false, true] {
            check(ConvCase { input: [channels, 8, 7], out, groups, ..CASE }, planar);
        }
    }
}

#[test]
fn uneven_windows_are_as_in_f64() {
    for planar in [false, true] {
        check(ConvCase { pads: [0, 1, 2, 3], ..CASE }, planar);
        check(ConvCase { pads: [2, 0, 0, 1], stride: [2, 1], ..CASE }, planar);
        check(ConvCase { kernel: [1, 5], pads: [0, 2, 0, 2], ..CASE }, planar);
        check(ConvCase { kernel: [4, 2], pads: [1, 1, 2, 0], ..CASE }, planar);
        check(ConvCase { dilation: [2, 3], pads: [2, 3, 2, 3], ..CASE }, planar);
        check(ConvCase { dilation: [2, 2], pads: [4; 4], kernel: [5, 5], stride: [2, 2], ..CASE }, planar);
        check(ConvCase { stride: [1, 3], kernel: [1, 1], pads: [0; 4], ..CASE }, planar);
    }
}

#[test]
fn few_products_are_as_in_f64() {
    // Both patches, sizes that are no multiple of a tile, and borders of every kind.
    for (channels, out, [height, width]) in [
        (32, 32, [12, 12]),
        (64, 48, [13, 19]),
        (40, 33, [28, 15]),
        (136, 128, [6, 7]),
        (144, 160, [7, 7]),
        (256, 256, [9, 6]),
    ] {
        for pads in [[1; 4], [0; 4], [0, 1, 2, 1], [2, 2, 1, 0]] {
            check(ConvCase { input: [channels, height, width], out, pads, ..CASE }, false);
        }
    }
}

#[test]
fn images_of_one_pixel_are_as_in_f64() {
    let pixel = ConvCase { input: [40, 1, 1], out: 70, kernel: [1, 1], pads: [0; 4], ..CASE };
    check(pixel, false);
    check(pixel, true);
    check(ConvCase { kernel: [3, 3], pads: [1; 4], ..pixel }, false);
}
