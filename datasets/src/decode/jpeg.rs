//! What the JPEG decoder does not look at: whether the file is whole, and how often it goes over the image.

/// The markers without a length: TEM, RST0 to RST7, SOI.
const STANDALONE: [u8; 10] = [0x01, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8];
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;

/// The number of scans up to the end of the image; none where the file ends before it.
///
/// The decoder fills what is missing with grey, and a file of a few megabytes can have some hundred thousand scans,
/// each of which costs time for every block of the image. Source: ITU-T T.81, annex B.
pub(super) fn scans(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let mut scans = 0;
    loop {
        // Entropy-coded data and what strays between segments hold no 0xff but before 0x00.
        let start = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0x00 | 0xff))?;
        let marker = rest[start + 1];
        rest = &rest[start + 2..];
        match marker {
            END_OF_IMAGE if scans > 0 => return Some(scans),
            END_OF_IMAGE => return None,
            marker if STANDALONE.contains(&marker) => {}
            marker => {
                scans += usize::from(marker == START_OF_SCAN);
                let length = usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?]));
                rest = rest.get(length.max(2)..)?;
            }
        }
    }
}
