//! `scaling`: how the cost of an all-reduce grows with the ranks of one machine.

use clap::Args;
use recipe_common::Result;

use crate::engine::{Measured, Variant, median};
use crate::model::ring_factor;
use crate::sides::{Sides, Transport};
use crate::size::Size;
use recipe_common::machine::Machine;
use recipe_common::output::{digits, print, table, time};

/// Show how the cost of an all-reduce grows with the ranks of this machine, beside a ring's 2 (n - 1) / n.
///
/// With more ranks than cores, ranks wait for cores and not for each other, and a rank's time on the clock says little.
/// What says something is the processor time of one rank, and the time on the clock that all ranks would need with a
/// core each: time x cores / ranks.
#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of ranks, with commas between them; growth is over the first.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Transport::All)]
    transport: Transport,
    /// The buffer's size.
    #[arg(long, default_value = "26MB")]
    size: Size,
    /// How many times all are measured, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

/// One number of ranks on one transport.
struct Row {
    variant: Variant,
    ranks: usize,
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let variants = options.transport.variants()?;
    let ranks: Vec<usize> = options.ranks.iter().copied().map(usize::from).collect();
    let mut sides =
        ranks.iter().map(|ranks| Sides::start(&variants, *ranks, None)).collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<Row> = variants
        .iter()
        .flat_map(|&variant| {
            ranks.iter().map(move |&ranks| Row {
                variant,
                ranks,
                seconds: Vec::new(),
                cpu_seconds: Vec::new(),
            })
        })
        .collect();
    for _ in 0..options.rounds {
        for (index, row) in rows.iter_mut().enumerate() {
            let measured = sides[index % ranks.len()].all_reduce(row.variant, options.size.0)?;
            row.seconds.push(Measured::slowest(&measured));
            row.cpu_seconds.push(Measured::cpu_per_rank(&measured));
        }
    }
    print(&text(&rows, &Machine::this(), options.size))
}

fn text(rows: &[Row], machine: &Machine, size: Size) -> String {
    let header =
        ["transport", "ranks", "ring", "processor time a rank", "growth", "time", "a core each", "growth"];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let first = rows.iter().find(|first| first.variant == row.variant).unwrap_or(row);
            let [cpu, base_cpu] = [row, first].map(|row| median(row.cpu_seconds.iter().copied()));
            let [seconds, base_seconds] = [row, first].map(|row| row.with_cores(machine.cores));
            vec![
                row.variant.name().to_owned(),
                row.ranks.to_string(),
                digits(ring_factor(row.ranks) / ring_factor(first.ranks)),
                time(cpu),
                digits(cpu / base_cpu),
                time(median(row.seconds.iter().copied())),
                time(seconds),
                digits(seconds / base_seconds),
            ]
        })
        .collect();
    format!(
        "All-reduce (sum, f32) of {size}, {}, {} cores; growth is over the first row of a transport, and stays within \
         the ring's where it is no larger:\n\n{}",
        machine.processor,
        machine.cores,
        table(&header.map(str::to_owned), &cells),
    )
}

impl Row {
    /// The time on the clock if each rank had a core.
    fn with_cores(&self, cores: usize) -> f64 {
        median(self.seconds.iter().copied()) * cores.min(self.ranks) as f64 / self.ranks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_over_the_first_number_of_ranks_and_beside_the_rings() {
        let row = |ranks, seconds, cpu| Row {
            variant: Variant::Tcp,
            ranks,
            seconds: vec![seconds],
            cpu_seconds: vec![cpu],
        };
        let machine = Machine { processor: "x".into(), cores: 2 };
        let text = text(&[row(2, 0.010, 0.008), row(8, 0.060, 0.012)], &machine, Size(26_000_000));
        assert!(text.contains("| tcp | 2 | 1.00 | 8.00 ms | 1.00 | 10.0 ms | 10.0 ms | 1.00 |"), "{text}");
        assert!(text.contains("| tcp | 8 | 1.75 | 12.0 ms | 1.50 | 60.0 ms | 15.0 ms | 1.50 |"), "{text}");
    }
}
