//! What the system says of this process.

use std::fs;

/// Memory that it has and has had, in bytes; none where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// In use now: `VmRSS`.
    pub(crate) resident: Option<u64>,
    /// The most that was in use at any time: `VmHWM`.
    pub(crate) peak: Option<u64>,
}

impl Memory {
    /// Of this process.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/self/status").map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes: u64 =
                line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()?;
            kilobytes.checked_mul(1024)
        };
        Self { resident: field("VmRSS"), peak: field("VmHWM") }
    }

    /// The peak as people read it: `123 MB`.
    pub(crate) fn peak_text(&self) -> String {
        self.peak.map_or_else(|| "an unknown size".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6))
    }
}

/// Open files and sockets.
pub(crate) fn open_files() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

/// Seconds since the system started this process, to a hundredth.
pub(crate) fn age_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    age(&stat, &uptime)
}

/// Linux counts a process's start in hundredths of a second on every architecture; field 22 of `stat`, see proc(5).
fn age(stat: &str, uptime: &str) -> Option<f64> {
    // The second field is the program's name in parentheses, in which anything may be.
    let (_, fields) = stat.rsplit_once(')')?;
    let started: f64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let up: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some((up - started / 100.0).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(Memory::parse(status), Memory { resident: Some(1 << 20), peak: Some(2 << 20) });
        assert_eq!(Memory::parse("VmHWM: many"), Memory::default());
        assert_eq!(Memory { peak: Some(123_456_789), resident: None }.peak_text(), "123 MB");
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_start_time() {
        let stat = format!("7 (a) b (c)) S {} 1234 9 9", vec!["1"; 18].join(" "));
        assert_eq!(age(&stat, "20.50 3.1\n"), Some(20.5 - 12.34));
        assert_eq!(age("7 (a) S 1", "20.5 3"), None);
    }
}
