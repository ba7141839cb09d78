//! The picture of a run: training loss and test accuracy over the steps, as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{RecipeError, Result};

const SIZE: (u32, u32) = (900, 480);
const FONT: &str = "sans-serif";
const LOSS: RGBColor = RGBColor(31, 111, 180);
const ACCURACY: RGBColor = RGBColor(217, 95, 14);
const TEXT: RGBColor = RGBColor(60, 60, 60);
/// Weight of the past in the smoothed loss.
const SMOOTHING: f64 = 0.9;

/// Points of a curve beyond which a checkpoint keeps every second one, every fourth, and so on: the picture is not wider.
const KEPT_POINTS: usize = 2000;

/// The curves of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Step and training loss.
    pub loss: Vec<(usize, f64)>,
    /// Step and test accuracy, 0 to 1.
    pub accuracy: Vec<(usize, f64)>,
}

impl Curves {
    /// The same with few enough points for a checkpoint.
    pub fn thinned(&self) -> Self {
        let stride = self.loss.len().div_ceil(KEPT_POINTS).max(1).next_power_of_two();
        Self { loss: self.loss.iter().copied().step_by(stride).collect(), accuracy: self.accuracy.clone() }
    }

    /// Draws the curves under `title`.
    ///
    /// # Errors
    /// Where the drawing library refuses the values.
    pub fn svg(&self, title: &str) -> Result<String> {
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        self.draw(&root, title).map_err(|error| {
            RecipeError::failure(
                "cannot draw the loss curve",
                error.to_string(),
                "plot metrics.jsonl instead",
            )
        })?;
        drop(root);
        Ok(svg)
    }

    fn draw(
        &self,
        root: &DrawingArea<SVGBackend<'_>, Shift>,
        title: &str,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'_> as DrawingBackend>::ErrorType>> {
        root.fill(&WHITE)?;
        let last = self.loss.iter().chain(&self.accuracy).map(|point| point.0).max().unwrap_or(0).max(1);
        let highest = self.loss.iter().map(|point| point.1).fold(0.1, f64::max);
        let style = |size: i32| (FONT, size).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on(root)
            .margin(14)
            .caption(title, style(25))
            .x_label_area_size(50)
            .y_label_area_size(64)
            .right_y_label_area_size(78)
            .build_cartesian_2d(0..last, 0.0..highest * 1.05)?
            .set_secondary_coord(0..last, 0.0..100.0);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.1))
            .axis_style(BLACK.mix(0.4))
            .label_style(style(17))
            .axis_desc_style(style(19))
            .x_desc("step")
            .y_desc("training loss")
            .y_label_formatter(&|value| format!("{value:.1}"))
            .draw()?;
        chart
            .configure_secondary_axes()
            .axis_style(BLACK.mix(0.4))
            .label_style(style(17))
            .axis_desc_style(style(19))
            .y_desc("test accuracy")
            .y_label_formatter(&|value| format!("{value:.0} %"))
            .draw()?;

        chart.draw_series(LineSeries::new(self.loss.iter().copied(), LOSS.mix(0.3).stroke_width(1)))?;
        chart
            .draw_series(LineSeries::new(smoothed(&self.loss), LOSS.stroke_width(3)))?
            .label("training loss, smoothed")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], LOSS.stroke_width(3)));
        let percent = || self.accuracy.iter().map(|&(step, accuracy)| (step, accuracy * 100.0));
        chart
            .draw_secondary_series(LineSeries::new(percent(), ACCURACY.stroke_width(2)))?
            .label("test accuracy")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 22, y)], ACCURACY.stroke_width(2)));
        chart.draw_secondary_series(percent().map(|point| Circle::new(point, 4, ACCURACY.filled())))?;
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .margin(16)
            .label_font(style(19))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        root.present()
    }
}

/// The running mean `m_t = 0.9 m_(t-1) + 0.1 x_t`, divided by the weights so far so that it does not start at zero.
fn smoothed(points: &[(usize, f64)]) -> Vec<(usize, f64)> {
    let (mut mean, mut weight) = (0.0, 0.0);
    points
        .iter()
        .map(|&(step, value)| {
            mean = SMOOTHING * mean + (1.0 - SMOOTHING) * value;
            weight = SMOOTHING * weight + (1.0 - SMOOTHING);
            (step, mean / weight)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_stays_where_it_is_and_a_jump_is_followed_slowly() {
        let constant = smoothed(&[(1, 2.0), (2, 2.0), (3, 2.0)]);
        assert!(constant.iter().all(|point| (point.1 - 2.0).abs() < 1e-12));
        // Weights 0.1 and 0.09 of their sum 0.19.
        let jump = smoothed(&[(1, 0.0), (2, 1.9)]);
        assert!((jump[1].1 - 1.0).abs() < 1e-12, "{jump:?}");
    }

    #[test]
    fn the_picture_holds_both_curves_with_names_and_axes() {
        let curves = Curves {
            loss: (1..=50).map(|step| (step, 2.0 / step as f64)).collect(),
            accuracy: vec![(25, 0.8), (50, 0.97)],
        };
        let svg = curves.svg("ResNet-50 <on> digits").unwrap();
        for text in
            ["training loss, smoothed", "test accuracy", "step", "100 %", "ResNet-50 &lt;on&gt; digits"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("<circle").count(), 2);
        // The raw loss, the smoothed loss and the accuracy, each one line of its own colour and width.
        assert!(svg.contains("stroke=\"#1F6FB4\" stroke-width=\"3\""), "{svg}");
        assert!(svg.contains("stroke=\"#D95F0E\" stroke-width=\"2\""));
    }

    #[test]
    fn a_long_curve_is_kept_with_fewer_points() {
        let of = |steps: usize| Curves {
            loss: (1..=steps).map(|step| (step, 1.0)).collect(),
            ..Default::default()
        };
        assert_eq!(of(2000).thinned(), of(2000));
        let thinned = of(9000).thinned();
        assert_eq!((thinned.loss.len(), thinned.loss[1]), (1125, (9, 1.0)));
    }

    #[test]
    fn a_run_without_steps_still_has_a_picture() {
        assert!(Curves::default().svg("empty").unwrap().contains("</svg>"));
    }
}
