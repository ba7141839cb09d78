//! What the system says of this process.

use std::fs;

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
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_start_time() {
        let stat = format!("7 (a) b (c)) S {} 1234 9 9", vec!["1"; 18].join(" "));
        assert_eq!(age(&stat, "20.50 3.1\n"), Some(20.5 - 12.34));
        assert_eq!(age("7 (a) S 1", "20.5 3"), None);
    }
}
