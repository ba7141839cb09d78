//! The results as Markdown.

use super::results::{Cell, Results};
use crate::size::Size;
use recipe_common::output::{digits, table, time};

pub(super) fn markdown(results: &Results) -> String {
    let times = grid(results, |cell| match cell.gloo_ratio_median {
        Some(ratio) if cell.transport != "gloo" => {
            format!("{} ({}x)", time(cell.seconds_median), digits(ratio))
        }
        _ => time(cell.seconds_median),
    });
    let bandwidths = grid(results, |cell| digits(cell.bus_bytes_per_second / 1e9));
    let cpu = grid(results, |cell| time(cell.cpu_seconds_median));
    let machine = results.machine();
    format!(
        "All-reduce (sum, f32) between {} ranks, {}, {} cores, median of {} rounds{}:\n\n{times}\n\
         Bus bandwidth in GB/s, 2 (n - 1) / n x size / time:\n\n{bandwidths}\n\
         Processor time of one rank:\n\n{cpu}{}",
        results.ranks,
        machine.processor,
        machine.cores,
        results.rounds(),
        if has_peer(results) {
            "; how many times as long gloo takes (median of the rounds' ratios)"
        } else {
            ""
        },
        memory(results),
    )
}

fn has_peer(results: &Results) -> bool {
    results.transports().contains(&"gloo")
}

/// Sizes down, transports across.
fn grid(results: &Results, show: impl Fn(&Cell) -> String) -> String {
    let transports = results.transports();
    let header: Vec<String> = ["size"].iter().chain(&transports).map(|name| (*name).to_owned()).collect();
    let row = |bytes: usize| {
        let cells = transports.iter().map(|name| results.cell(name, bytes).map(&show).unwrap_or_default());
        std::iter::once(Size(bytes).to_string()).chain(cells).collect()
    };
    table(&header, &results.sizes().into_iter().map(row).collect::<Vec<_>>())
}

/// How far shared memory is from the memory itself.
fn memory(results: &Results) -> String {
    let Some(bandwidth) = results.memory_bandwidth else { return String::new() };
    let mut text = format!(
        "\nMemory bandwidth, STREAM's triad in {} processes at once: {} GB/s.\n",
        results.ranks,
        digits(bandwidth / 1e9)
    );
    for cell in &results.cells {
        if let Some(share) = cell.memory_share {
            text += &format!(
                "{} in shared memory reads and writes {} buffers at {:.0}% of it.\n",
                Size(cell.bytes),
                results.ranks,
                share * 100.0,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe_common::machine::Machine;

    #[test]
    fn each_size_is_a_row_and_each_transport_a_column_with_its_ratio() {
        let mut results = Results::new(Machine { processor: "a processor".into(), cores: 2 }, 2, 1);
        results.add("tcp", 1_000, 12e-6, 10e-6);
        results.add("gloo", 1_000, 300e-6, 100e-6);
        results.add("tcp", 26_000_000, 6e-3, 5e-3);
        results.add("gloo", 26_000_000, 15e-3, 5e-3);
        let text = markdown(&results);
        assert!(
            text.contains("between 2 ranks, a processor, 2 cores, median of 1 rounds; how many"),
            "{text}"
        );
        assert!(text.contains("| size | tcp | gloo |\n| --- | --: | --: |\n"), "{text}");
        assert!(text.contains("| 1 KB | 12.0 µs (25.0x) | 300 µs |\n"), "{text}");
        assert!(text.contains("| 26 MB | 6.00 ms (2.50x) | 15.0 ms |\n"), "{text}");
        assert!(text.contains("| 26 MB | 4.33 | 1.73 |\n"), "{text}");
    }
}
