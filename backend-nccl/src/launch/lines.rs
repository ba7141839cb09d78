use std::collections::VecDeque;

/// A line longer than this is passed on in pieces, or a rank that never ends its line would fill the memory.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Lines that a failure report repeats, and the bytes of each.
const TAIL_LINES: usize = 5;
const TAIL_LINE_BYTES: usize = 1000;

/// Cuts a stream of bytes into lines.
#[derive(Default)]
pub(super) struct LineBuffer {
    unfinished: Vec<u8>,
}

impl LineBuffer {
    /// Takes the next `bytes` and passes each line that they complete to `emit`, without its line feed.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            if self.unfinished.is_empty() {
                emit(&bytes[..end]);
            } else {
                self.unfinished.extend_from_slice(&bytes[..end]);
                emit(&self.unfinished);
                self.unfinished.clear();
            }
            bytes = &bytes[end + 1..];
        }
        self.unfinished.extend_from_slice(bytes);
        if self.unfinished.len() >= MAX_LINE_BYTES {
            self.finish(emit);
        }
    }

    /// Passes on a last line that no line feed has ended.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        if !self.unfinished.is_empty() {
            emit(&self.unfinished);
            self.unfinished.clear();
        }
    }
}

/// The last lines of a stream, for the failure report.
#[derive(Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    pub(super) fn push(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        if self.lines.len() == TAIL_LINES {
            self.lines.pop_front();
        }
        let kept = &line[..line.len().min(TAIL_LINE_BYTES)];
        self.lines.push_back(String::from_utf8_lossy(kept).trim_end().to_owned());
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
        for chunk in chunks {
            buffer.push(chunk, |line| lines.push(line.to_vec()));
        }
        buffer.finish(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive() {
        let whole: &[u8] = b"one\n\ntwo\xff\r\nlast";
        let expected: Vec<Vec<u8>> = vec![b"one".into(), b"".into(), b"two\xff\r".into(), b"last".into()];
        assert_eq!(lines(&[whole]), expected);
        for split in 0..=whole.len() {
            assert_eq!(lines(&[&whole[..split], &whole[split..]]), expected, "split at {split}");
        }
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let mib = vec![b'x'; 1 << 20];
        let pieces = lines(&[mib.as_slice(); 20]);
        assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [16 << 20, 4 << 20]);
    }

    #[test]
    fn a_tail_keeps_the_last_lines_that_say_something() {
        let mut tail = Tail::default();
        for number in 0..9 {
            tail.push(format!("line {number}").as_bytes());
            tail.push(b"  ");
        }
        assert_eq!(tail.take(), ["line 4", "line 5", "line 6", "line 7", "line 8"]);
    }
}
