//! What is compared: images, batch sizes, engines; and the table of it.

use burn_nccl_inference::Engine;
use recipe_common::Result;
use recipe_common::output::columns;

use crate::comparison::Difference;
use crate::engine_options::inference;

/// Images that every engine runs, and Burn's logits for them.
pub(super) struct Images {
    pub(super) name: &'static str,
    pub(super) values: Vec<f32>,
    pub(super) reference: Vec<f32>,
}

/// One comparison.
pub(super) struct Row {
    pub(super) engine: String,
    pub(super) images: &'static str,
    pub(super) batch: usize,
    pub(super) difference: Difference,
}

/// The logits of all images, `batch` at a time and fewer at the end.
pub(super) fn run_all(
    engine: &mut dyn Engine,
    values: &[f32],
    image: usize,
    batch: usize,
) -> Result<Vec<f32>> {
    let (mut all, mut logits) = (Vec::new(), Vec::new());
    for part in values.chunks(image * batch) {
        engine
            .run(part.len() / image, part, &mut logits)
            .map_err(|error| inference(format!("{} fails at batch {batch}", engine.name()), &error))?;
        all.extend_from_slice(&logits);
    }
    Ok(all)
}

/// The table of all comparisons; those above the tolerance are marked.
pub(super) fn table(rows: &[Row], tolerance: f64) -> String {
    let head = ["engine", "images", "batch", "absolute", "relative", "same class", ""].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let Difference { absolute, agreeing, images, .. } = row.difference;
        [
            row.engine.clone(),
            row.images.to_owned(),
            row.batch.to_string(),
            format!("{absolute:.1e}"),
            format!("{:.1e}", row.difference.relative()),
            format!("{agreeing} of {images}"),
            if row.fits(tolerance) { String::new() } else { "too far".to_owned() },
        ]
    });
    columns(&std::iter::once(head).chain(cells).collect::<Vec<_>>())
}

impl Row {
    /// Whether the difference is allowed. A NaN is not.
    pub(super) fn fits(&self, tolerance: f64) -> bool {
        self.difference.relative() <= tolerance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_marks_what_is_above_the_tolerance() {
        let row = |engine: &str, images, found: &[f32]| Row {
            engine: engine.into(),
            images,
            batch: 3,
            difference: Difference::of(&[4.0, 0.0], found, 2),
        };
        let rows = [row("a", "real", &[4.0, 0.0]), row("longer", "random", &[4.0, 4.5])];
        assert_eq!(
            table(&rows, 1e-4),
            "engine  images  batch  absolute  relative  same class\n\
             a       real    3      0.0e0     0.0e0     1 of 1\n\
             longer  random  3      4.5e0     1.1e0     0 of 1      too far\n"
        );
    }

    #[test]
    fn all_images_are_run_whatever_the_batch_size() {
        struct Sums;
        impl Engine for Sums {
            fn name(&self) -> String {
                "sums".into()
            }
            fn run(
                &mut self,
                batch: usize,
                images: &[f32],
                logits: &mut Vec<f32>,
            ) -> burn_nccl_inference::Result<()> {
                logits.clear();
                logits.extend(images.chunks(images.len() / batch).map(|image| image.iter().sum::<f32>()));
                Ok(())
            }
        }
        let values: Vec<f32> = (0..10).map(|value| value as f32).collect();
        for batch in [1, 2, 3, 8] {
            assert_eq!(run_all(&mut Sums, &values, 2, batch).unwrap(), [1.0, 5.0, 9.0, 13.0, 17.0]);
        }
    }
}
