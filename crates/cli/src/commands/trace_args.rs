//! `--trace FILE` of the commands that see a real host.

use super::observe::time;
use clap::Args;
use microslice_host::settings::trace::TraceSettings;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct TraceArgs {
    /// Write what runs where, and why it leaves, to this file, for https://ui.perfetto.dev
    /// (docs/how-to/trace.md)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// With --trace: for so long: `500ms`, `10s`, `1min` [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "trace")]
    trace_for: Option<Duration>,
    /// With --trace: as long as the file is smaller [default: 100]
    #[arg(
        long,
        value_name = "MIB",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TraceSettings::MIB_MAX)),
        requires = "trace"
    )]
    trace_size: Option<u32>,
}

impl TraceArgs {
    pub fn settings(&self) -> Option<TraceSettings> {
        self.trace.as_ref().map(|path| TraceSettings::new(path, self.trace_for, self.trace_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        trace: TraceArgs,
    }

    fn read(arguments: &[&str]) -> Option<Option<TraceSettings>> {
        let command = Command::try_parse_from([&["command"][..], arguments].concat()).ok()?;
        Some(command.trace.settings())
    }

    #[test]
    fn a_trace_is_bounded_whether_or_not_a_bound_is_given() {
        let default = read(&["--trace", "t"]).flatten().expect("a trace");
        assert_eq!((default.length, default.bytes), (Duration::from_secs(10), 100 << 20));
        let said = read(&["--trace", "t", "--trace-for", "1min", "--trace-size", "7"]).flatten();
        assert_eq!(said.map(|said| (said.length, said.bytes)), Some((Duration::from_secs(60), 7 << 20)));
        assert_eq!(read(&[]), Some(None));
        let wrong = [
            &["--trace-for", "1min"][..],
            &["--trace-size", "7"],
            &["--trace", "t", "--trace-for", "60"],
            &["--trace", "t", "--trace-size", "0"],
            &["--trace", "t", "--trace-size", "4097"],
        ];
        assert!(wrong.into_iter().all(|arguments| read(arguments).is_none()));
    }
}
