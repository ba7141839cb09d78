//! What comes first on a data connection: the signature of what follows, and a checksum of itself.
//!
//! A bit that flips in a header would pose as another program on the other rank, or as bytes of another length. The
//! checksum tells the network's faults from the user's; it costs a few nanoseconds, so it is always there.

use crate::transport::{Signature, frame::HEADER_BYTES};

/// Bytes of a header.
pub(super) const BYTES: usize = HEADER_BYTES + CHECKSUM_BYTES;
/// Bytes of a checksum, here and behind each piece of a payload.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// The byte that the signature leaves free.
const FLAGS: usize = HEADER_BYTES - 1;
/// The flag of a payload whose pieces carry checksums.
const CHECKSUMS: u8 = 1;

/// The header for a group whose members know it by `tag`.
pub(super) fn encode(signature: &Signature, tag: u32, checksums: bool) -> [u8; BYTES] {
    let mut signed = signature.encode(tag);
    signed[FLAGS] = if checksums { CHECKSUMS } else { 0 };
    let mut header = [0; BYTES];
    header[..HEADER_BYTES].copy_from_slice(&signed);
    header[HEADER_BYTES..].copy_from_slice(&crc32c::crc32c(&signed).to_le_bytes());
    header
}

/// Reads a header, or says what is wrong with it.
pub(super) fn decode(header: &[u8; BYTES], tag: u32, checksums: bool) -> Result<Signature, String> {
    let (signed, sum) = header.split_at(HEADER_BYTES);
    if crc32c::crc32c(signed).to_le_bytes() != sum {
        return Err(format!("the checksum of a header differs, the header is {header:02x?}"));
    }
    let signed = signed.try_into().map_err(|_| "a header of the wrong size".to_owned())?;
    let signature = Signature::decode(signed, tag)?;
    match (signed[FLAGS] == CHECKSUMS, checksums) {
        (true, false) => Err("it sends checksums and this rank none; give all ranks the same options".into()),
        (false, true) => {
            Err("it sends no checksums and this rank does; give all ranks the same options".into())
        }
        _ => Ok(signature),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{DType, OpKind, ReduceOp};

    const SIGNATURE: Signature = Signature {
        sequence: 7,
        kind: OpKind::AllReduce,
        dtype: DType::F32,
        op: Some(ReduceOp::Sum),
        root: 0,
        bytes: 400,
    };

    #[test]
    fn a_header_with_any_flipped_bit_is_refused() {
        let header = encode(&SIGNATURE, 9, true);
        assert_eq!(decode(&header, 9, true), Ok(SIGNATURE));
        for bit in 0..BYTES * 8 {
            let mut spoilt = header;
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&spoilt, 9, true).unwrap_err().contains("checksum of a header"), "bit {bit}");
        }
    }

    #[test]
    fn ranks_that_differ_in_checksums_are_told_so() {
        for sends in [true, false] {
            let error = decode(&encode(&SIGNATURE, 9, sends), 9, !sends).unwrap_err();
            assert!(error.contains("same options"), "{error}");
        }
    }
}
