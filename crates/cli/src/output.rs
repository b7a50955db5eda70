//! Files that a command writes: complete or not there at all.

use crate::failure::Failure;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file under its final name only after [`OutputFile::commit`]; dropped before, it leaves nothing behind.
pub struct OutputFile {
    path: PathBuf,
    target: Target,
}

enum Target {
    /// Next to the final name, so that renaming works.
    Temporary(BufWriter<NamedTempFile>),
    /// A pipe or a device can't be renamed to.
    Direct(BufWriter<std::fs::File>),
}

impl OutputFile {
    /// Opens the output; fails before any work is done if it can't be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let refuse = |error: std::io::Error| Failure::bad_input(format!("{}: {error}", path.display()));
        let special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let target = if special {
            let file = std::fs::OpenOptions::new().write(true).open(path).map_err(refuse)?;
            Target::Direct(BufWriter::new(file))
        } else {
            let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
            let file = tempfile::Builder::new().permissions(readable_by_all()).tempfile_in(folder);
            Target::Temporary(BufWriter::new(file.map_err(refuse)?))
        };
        Ok(Self { path: path.to_owned(), target })
    }

    /// Gives the complete file its name.
    pub fn commit(self) -> Result<(), Failure> {
        let path = self.path;
        let broken = |error: &dyn std::fmt::Display| Failure::broken(format!("{}: {error}", path.display()));
        match self.target {
            Target::Direct(mut file) => file.flush().map_err(|error| broken(&error)),
            Target::Temporary(file) => {
                let file = file.into_inner().map_err(|error| broken(&error.error()))?;
                file.persist(&path).map(drop).map_err(|error| broken(&error.error))
            }
        }
    }
}

/// As any program creates files (the umask still applies); temporary files are private by default.
fn readable_by_all() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.target {
            Target::Temporary(file) => file.write(bytes),
            Target::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match &mut self.target {
            Target::Temporary(file) => file.flush(),
            Target::Direct(file) => file.flush(),
        }
    }
}

/// Writes a text to a file in one go.
pub fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = OutputFile::create(path)?;
    file.write_all(text.as_bytes())
        .map_err(|error| Failure::broken(format!("{}: {error}", path.display())))?;
    file.commit()
}

/// Prints to standard output; a reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::broken(error)),
        _ => Ok(()),
    }
}

/// JSON for scripts, on standard output.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}
