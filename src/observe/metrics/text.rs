//! The text format of Prometheus, version 0.0.4.
//!
//! A family of metrics is one block: `# HELP`, `# TYPE`, then its samples. The writer puts a family
//! down as a whole, so it cannot be torn apart.

use std::fmt::Write;

use super::PhaseMetrics;

/// The content type that a client is told.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The meaning of the values of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name ends in `_total`.
    Counter,
    /// How many were not above which value.
    Histogram,
}

/// Collects families.
#[derive(Debug, Default)]
pub(super) struct Text {
    out: String,
}

/// Labels and value of one sample.
pub(super) type Sample<'a> = (&'a [(&'a str, &'a str)], f64);

impl Text {
    /// A family without labels.
    pub(super) fn one(&mut self, kind: Kind, name: &str, help: &str, value: f64) {
        self.family(kind, name, help, &[(&[], value)]);
    }

    /// A family; without samples it is left out.
    pub(super) fn family(&mut self, kind: Kind, name: &str, help: &str, samples: &[Sample<'_>]) {
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        if samples.is_empty() {
            return;
        }
        self.head(kind, name, help);
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
    }

    /// A family of histograms with their labels; without any it is left out.
    pub(super) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (Vec<(&'a str, &'a str)>, &'a PhaseMetrics)>,
    ) {
        let mut all = all.peekable();
        if all.peek().is_none() {
            return;
        }
        self.head(Kind::Histogram, name, help);
        for (labels, phase) in all {
            let bucket = format!("{name}_bucket");
            let mut upper = String::new();
            for (seconds, below) in phase.buckets.iter().copied() {
                upper.clear();
                number(&mut upper, seconds);
                self.sample(&bucket, &[&labels[..], &[("le", &upper)]].concat(), count(below));
            }
            let all = count(phase.count);
            self.sample(&bucket, &[&labels[..], &[("le", "+Inf")]].concat(), all);
            self.sample(&format!("{name}_sum"), &labels, phase.sum_sec);
            self.sample(&format!("{name}_count"), &labels, all);
        }
    }

    fn head(&mut self, kind: Kind, name: &str, help: &str) {
        let word = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(&mut self.out, help, false);
        let _ = writeln!(self.out, "\n# TYPE {name} {word}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            self.out.push_str(label);
            self.out.push_str("=\"");
            escape(&mut self.out, text, true);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        self.out.push(' ');
        number(&mut self.out, value);
        self.out.push('\n');
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// Escapes characters that would end a line or a label.
fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

fn number(out: &mut String, value: f64) {
    // Whole numbers as such; `Display` writes floats in full, which can be read back exactly.
    let _ = if value.is_nan() {
        write!(out, "NaN")
    } else if value.is_infinite() {
        write!(out, "{}Inf", if value > 0.0 { '+' } else { '-' })
    } else {
        write!(out, "{value}")
    };
}

/// A count as a value. Beyond 2^53 the last digits are lost, as in Prometheus.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) fn count(count: u64) -> f64 {
    count as f64
}

/// Returns a size as a value.
pub(super) fn size(size: usize) -> f64 {
    count(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_line_is_escaped() {
        let mut text = Text::default();
        let labels = [("a", "x\"y\\z\n"), ("b", "größe")];
        text.family(Kind::Gauge, "margo_x", "one\ntwo \\ \"three\"", &[(&labels, 1.5)]);
        text.family(Kind::Counter, "margo_nothing_total", "absent", &[]);
        text.one(Kind::Counter, "margo_y_total", "big", count(1 << 53));
        let expected = "# HELP margo_x one\\ntwo \\\\ \"three\"\n# TYPE margo_x gauge\n\
                        margo_x{a=\"x\\\"y\\\\z\\n\",b=\"größe\"} 1.5\n\
                        # HELP margo_y_total big\n# TYPE margo_y_total counter\n\
                        margo_y_total 9007199254740992\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn numbers_that_are_none_have_names() {
        for (value, text) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (0.0, "0"),
            (-1.25, "-1.25"),
            (1e-9, "0.000000001"),
        ] {
            let mut out = String::new();
            number(&mut out, value);
            assert_eq!(out, text);
        }
    }
}
