//! The table for people, in nccl-tests' form, and the same rows as JSON for programs.

use std::fmt::Write as _;

use crate::collective::Collective;

/// What one library did with one call.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Median over rounds of the mean over ranks.
    pub seconds: f64,
    /// None: not checked.
    pub wrong: Option<u64>,
}

/// One call, by one or two libraries.
#[derive(Debug, Clone)]
pub struct Row {
    pub collective: Collective,
    pub type_name: &'static str,
    pub op: Option<&'static str>,
    pub root: Option<usize>,
    pub bytes: usize,
    pub count: usize,
    pub in_place: bool,
    pub nranks: usize,
    pub samples: Vec<Sample>,
}

impl Row {
    fn algorithm_bandwidth(&self, sample: Sample) -> f64 {
        if sample.seconds > 0.0 { self.bytes as f64 / sample.seconds / 1e9 } else { 0.0 }
    }

    fn bus_bandwidth(&self, sample: Sample) -> f64 {
        self.algorithm_bandwidth(sample) * self.collective.bus_factor(self.nranks)
    }

    /// How many times faster the first library is.
    fn ratio(&self) -> Option<f64> {
        match self.samples.as_slice() {
            [ours, theirs] if ours.seconds > 0.0 => Some(theirs.seconds / ours.seconds),
            _ => None,
        }
    }

    fn head(&self) -> String {
        format!(
            "{:>12}  {:>12}  {:>8}  {:>5}  {:>4}",
            self.bytes,
            self.count,
            self.type_name,
            self.op.unwrap_or("none"),
            self.root.map_or("-1".to_string(), |root| root.to_string())
        )
    }

    fn cells(&self, sample: Sample) -> String {
        format!(
            "  {:>9}  {:>7.2}  {:>7.2}  {:>6}",
            micros(sample.seconds),
            self.algorithm_bandwidth(sample),
            self.bus_bandwidth(sample),
            sample.wrong.map_or("N/A".to_string(), |n| n.to_string())
        )
    }

    fn json(&self) -> String {
        let mut text = format!(
            "{{\"collective\": {}, \"type\": {}, \"op\": {}, \"root\": {}, \"bytes\": {}, \"count\": {}, \
             \"in_place\": {}",
            quote(self.collective.name()),
            quote(self.type_name),
            self.op.map_or("null".into(), quote),
            self.root.map_or("null".into(), |root| root.to_string()),
            self.bytes,
            self.count,
            self.in_place
        );
        for (name, sample) in ["lib", "vs"].iter().zip(&self.samples) {
            write!(
                text,
                ", \"{name}\": {{\"time_us\": {:.3}, \"algbw_gbs\": {:.4}, \"busbw_gbs\": {:.4}, \"wrong\": {}}}",
                sample.seconds * 1e6,
                self.algorithm_bandwidth(*sample),
                self.bus_bandwidth(*sample),
                sample.wrong.map_or("null".into(), |n| n.to_string())
            )
            .expect("writing to a String cannot fail");
        }
        if let Some(ratio) = self.ratio() {
            write!(text, ", \"ratio\": {ratio:.4}").expect("writing to a String cannot fail");
        }
        text.push('}');
        text
    }
}

/// Title lines of a collective's table.
pub fn title(collective: Collective, two: bool) -> String {
    let head = format!("{:>12}  {:>12}  {:>8}  {:>5}  {:>4}", "size", "count", "type", "redop", "root");
    let part = format!("  {:>9}  {:>7}  {:>7}  {:>6}", "time", "algbw", "busbw", "#wrong");
    let unit = format!("  {:>9}  {:>7}  {:>7}  {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
    let units = format!("{:>12}  {:>12}  {:>8}  {:>5}  {:>4}", "(B)", "(elements)", "", "", "");
    let over = |left: &str, right: &str| format!("# {:47}  {left:>35}  {right:>35}", "");
    let (sides, more, more_unit) = if two {
        (over("lib", "vs"), format!("  {:>6}  {:>8}", "ratio", "in place"), "")
    } else {
        (over("out-of-place", "in-place"), String::new(), "")
    };
    format!(
        "#\n# {}\n{sides}\n# {head}{part}{part}{more}\n# {units}{unit}{unit}{more_unit}",
        collective.name()
    )
}

/// One line for the out-of-place and the in-place call of one library.
pub fn line(out_of_place: &Row, in_place: Option<&Row>) -> String {
    let right = in_place.map_or_else(
        || format!("  {:>9}  {:>7}  {:>7}  {:>6}", "N/A", "N/A", "N/A", "N/A"),
        |row| row.cells(row.samples[0]),
    );
    format!("  {}{}{right}", out_of_place.head(), out_of_place.cells(out_of_place.samples[0]))
}

/// One line for one call of two libraries.
pub fn line_of_two(row: &Row) -> String {
    let ratio = row.ratio().map_or("N/A".to_string(), |ratio| format!("{ratio:.2}"));
    let place = if row.in_place { "yes" } else { "no" };
    let cells: String = row.samples.iter().map(|sample| row.cells(*sample)).collect();
    format!("  {}{cells}  {ratio:>6}  {place:>8}", row.head())
}

/// The whole run as JSON.
pub fn json(head: &[(&str, String)], rows: &[Row], unsupported: &[(String, String)]) -> String {
    let mut text = String::from("{\n");
    for (name, value) in head {
        writeln!(text, "  {}: {},", quote(name), quote(value)).expect("writing to a String cannot fail");
    }
    let missing: Vec<String> =
        unsupported.iter().map(|(name, why)| format!("    {}: {}", quote(name), quote(why))).collect();
    let rows: Vec<String> = rows.iter().map(|row| format!("    {}", row.json())).collect();
    write!(
        text,
        "  \"unsupported\": {{\n{}\n  }},\n  \"rows\": [\n{}\n  ]\n}}\n",
        missing.join(",\n"),
        rows.join(",\n")
    )
    .expect("writing to a String cannot fail");
    text
}

fn micros(seconds: f64) -> String {
    let us = seconds * 1e6;
    match us {
        _ if us < 100.0 => format!("{us:.2}"),
        _ if us < 10_000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                write!(out, "\\u{:04x}", c as u32).expect("writing to a String cannot fail")
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(samples: Vec<Sample>) -> Row {
        Row {
            collective: Collective::AllReduce,
            type_name: "float",
            op: Some("sum"),
            root: None,
            bytes: 4_000_000,
            count: 1_000_000,
            in_place: false,
            nranks: 4,
            samples,
        }
    }

    #[test]
    fn bandwidth_and_ratio() {
        let fast = Sample { seconds: 1e-3, wrong: Some(0) };
        let slow = Sample { seconds: 2e-3, wrong: None };
        let row = row(vec![fast, slow]);
        assert!((row.algorithm_bandwidth(fast) - 4.0).abs() < 1e-9);
        assert!((row.bus_bandwidth(fast) - 6.0).abs() < 1e-9);
        assert_eq!(row.ratio(), Some(2.0));
        let json = row.json();
        assert!(json.contains("\"time_us\": 1000.000") && json.contains("\"ratio\": 2.0000"), "{json}");
        assert!(json.contains("\"root\": null") && json.contains("\"wrong\": null"), "{json}");
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
