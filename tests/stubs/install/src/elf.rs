//! Takes a function out of a shared library: its name in the table of dynamic symbols is changed.

/// The type of the section of dynamic symbols.
const SHT_DYNSYM: u32 = 11;

/// Renames an exported symbol, so that nothing finds it. Whether it was there.
pub(crate) fn hide(library: &mut [u8], symbol: &str) -> bool {
    let Some(start) = name_of(library, symbol) else { return false };
    // What follows keeps its place, and the hash of the new name is nobody's question.
    library[start] = b'~';
    true
}

/// Where the name of an exported symbol starts in a 64-bit little-endian ELF file.
fn name_of(library: &[u8], symbol: &str) -> Option<usize> {
    if library.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = number(library, 0x28, 8)?;
    let size = number(library, 0x3a, 2)?;
    let sections = number(library, 0x3c, 2)?;
    let section = |index: usize| table + index * size;
    let dynamic =
        (0..sections).map(section).find(|&at| number(library, at + 4, 4) == Some(SHT_DYNSYM as usize))?;
    let names = section(number(library, dynamic + 0x28, 4)?);
    let (strings, symbols) = (number(library, names + 0x18, 8)?, number(library, dynamic + 0x18, 8)?);
    let count = number(library, dynamic + 0x20, 8)? / 24;
    let mut starts = (0..count).filter_map(|index| Some(strings + number(library, symbols + index * 24, 4)?));
    starts.find(|&start| {
        let end = start + symbol.len();
        library.get(start..end) == Some(symbol.as_bytes()) && library.get(end) == Some(&0)
    })
}

/// A little-endian number of some bytes.
fn number(library: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = library.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}
