//! `--record FILE`: the (observation, decision) stream, in the format that `crates/policy` replays.

use crate::HostError;
use microslice_policy::recording::Writer;
use microslice_policy::{GuestCode, Record};
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub struct Recorder {
    path: PathBuf,
    writer: Writer<BufWriter<File>>,
    pub record_count: u64,
}

impl Recorder {
    /// Creates the file. Slot 0 is the code of a guest without symbols, as in the BPF map.
    pub fn create(path: &Path) -> Result<Self, HostError> {
        let failed = |cause| HostError::refused(format!("{}: {cause}", path.display()));
        // To open a pipe that nobody reads waits for a reader.
        if std::fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
            return Err(HostError::refused(format!(
                "{}: a recording needs a file, not a pipe",
                path.display()
            )));
        }
        let file = File::create(path).map_err(failed)?;
        let mut recorder = Self {
            path: path.to_owned(),
            writer: Writer::new(BufWriter::new(file)).map_err(failed)?,
            record_count: 0,
        };
        let empty = GuestCode::new(0, 0, &[]).map_err(|cause| HostError::broken(cause.to_string()))?;
        recorder.code(0, &empty)?;
        Ok(recorder)
    }

    /// From here on the records that name `slot` mean this guest kernel.
    pub fn code(&mut self, slot: u32, code: &GuestCode) -> Result<(), HostError> {
        self.writer.code(slot, code).map_err(|cause| self.failed(cause))
    }

    pub fn record(&mut self, record: &Record) -> Result<(), HostError> {
        self.record_count += 1;
        self.writer.record(record).map_err(|cause| self.failed(cause))
    }

    pub fn finish(self) -> Result<u64, HostError> {
        let path = self.path;
        self.writer.finish().map_err(|cause| HostError::broken(format!("{}: {cause}", path.display())))?;
        Ok(self.record_count)
    }

    fn failed(&self, cause: std::io::Error) -> HostError {
        HostError::broken(format!("{}: {cause}", self.path.display()))
    }
}
