//! Drawings: a curve of rates and the map of the sites around this one.

use super::html::Html;
use renkei_core::path::SiteName;
use renkei_core::units::{bit_rate, milliseconds};
use renkei_site::status::view::Neighbour;
use renkei_site::transfer::history::RATES;
use std::fmt::Write;

/// Height of the curve in its own units; its width is a unit a second.
const CURVE_HEIGHT: f64 = 20.0;
/// Height of one neighbour on the map, and where its line begins and ends.
const ROW: usize = 58;
const LINE: (usize, usize) = (104, 212);
/// Longest name that fits a box of the map.
const NAME_CHARS: usize = 15;

/// A rate in bytes per second as bits per second.
pub(super) fn rate(bytes_per_second: u64) -> String {
    match bytes_per_second {
        0 => "0".into(),
        rate => bit_rate(rate as f64 * 8.0),
    }
}

/// The curve of the last minute; hidden from screen readers, which read the rate beside it.
pub(super) fn curve(rates: &[u64], class: &'static str) -> Html {
    let most = rates.iter().copied().max().unwrap_or(0).max(1) as f64;
    let points = rates.iter().rev().take(RATES).enumerate().fold(String::new(), |mut points, (age, rate)| {
        let y = CURVE_HEIGHT - 1.0 - *rate as f64 / most * (CURVE_HEIGHT - 2.0);
        let _ = write!(points, "{},{y:.1} ", RATES - 1 - age);
        points
    });
    Html::of(
        "<svg class=\"{}\" viewBox=\"0 0 59 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\" \
         focusable=\"false\"><polyline points=\"{}\"/></svg>",
        &[&class, &points.trim_end()],
    )
}

/// This site and its neighbours, with round trips and current rates. The table below it says the same in words.
pub(super) fn map(own: &SiteName, neighbours: &[Neighbour]) -> Html {
    let height = ROW * neighbours.len().max(1);
    let middle = height / 2;
    let mut html = Html::of(
        "<svg class=\"map\" viewBox=\"0 0 360 {}\" role=\"img\" aria-label=\"{} and the sites it trusts\">",
        &[&height, own],
    );
    for (index, neighbour) in neighbours.iter().enumerate() {
        html.add(line(middle, ROW * index + ROW / 2, neighbour));
    }
    html.add(site_box(4, middle, own, "here"));
    for (index, neighbour) in neighbours.iter().enumerate() {
        html.add(site_box(LINE.1, ROW * index + ROW / 2, &neighbour.site, &now(neighbour)));
    }
    html.put("</svg>", &[]);
    html
}

/// The round trip, and the current rate.
fn now(neighbour: &Neighbour) -> String {
    let trip = match (neighbour.unreached, neighbour.way.round_trip) {
        (Some(code), _) => format!("not reached: {code}"),
        (None, Some(trip)) => milliseconds(trip),
        (None, None) => "no transfer yet".into(),
    };
    match neighbour.rates.0 + neighbour.rates.1 {
        0 => trip,
        rates => format!("{trip}, {}", rate(rates)),
    }
}

fn site_box(x: usize, middle: usize, site: &SiteName, below: &str) -> Html {
    let width = if x < LINE.0 { LINE.0 - x } else { 360 - 4 - x };
    let center = x + width / 2;
    let mut name: String = site.as_str().chars().take(NAME_CHARS).collect();
    if name.len() < site.as_str().len() {
        name.push('…');
    }
    Html::of(
        "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"42\" rx=\"6\"/>\
         <text x=\"{}\" y=\"{}\">{}</text><text class=\"small\" x=\"{}\" y=\"{}\">{}</text></g>",
        &[site, &x, &(middle - 21), &width, &center, &(middle - 3), &name, &center, &(middle + 13), &below],
    )
}

/// The line to a neighbour, its width by the current rate.
fn line(from: usize, to: usize, neighbour: &Neighbour) -> Html {
    let rates = neighbour.rates.0 + neighbour.rates.1;
    // From 1.5 at rest to 6 at 10 Gbit/s, by the logarithm of bits per second.
    let width = 1.5 + if rates == 0 { 0.0 } else { (rates as f64 * 8.0).log10() / 10.0 * 4.5 };
    let class = if rates == 0 { "rest" } else { "busy" };
    let bend = (LINE.0 + LINE.1) / 2;
    Html::of(
        "<path class=\"{}\" stroke-width=\"{}\" d=\"M{} {} C{} {} {} {} {} {}\"/>",
        &[&class, &format!("{width:.1}"), &LINE.0, &from, &bend, &from, &bend, &to, &LINE.1, &to],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_rate_is_at_the_right() {
        let text = curve(&[0, 10], "curve").into_text();
        assert!(text.contains("points=\"59,1.0 58,19.0\""), "{text}");
        assert!(curve(&[], "curve").into_text().contains("points=\"\""));
        assert!(curve(&[5; 90], "curve").into_text().matches(',').count() == RATES);
    }
}
