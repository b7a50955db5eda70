//! What a command says and writes: lines that nobody has to read, and files that are complete or not there at all.

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
        let refuse = |error: std::io::Error| Failure::bad_input(cause(path, &error));
        // What these commands read are TOML files, and none of their outputs is one.
        if path.is_file() && path.extension().is_some_and(|extension| extension == "toml") {
            let cause = format!("{}: an output would replace this TOML file", path.display());
            return Err(Failure::bad_input(cause));
        }
        let target = if is_special(path) {
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
        let broken = |error: &std::io::Error| Failure::broken(cause(&path, error));
        match self.target {
            Target::Direct(mut file) => file.flush().map_err(|error| broken(&error)),
            Target::Temporary(file) => {
                let file = file.into_inner().map_err(|error| broken(error.error()))?;
                file.persist(&path).map(drop).map_err(|error| broken(&error.error))
            }
        }
    }

    /// Writes the whole file and gives it its name.
    pub fn finish_with(mut self, text: &str) -> Result<(), Failure> {
        self.write_all(text.as_bytes()).map_err(|error| Failure::broken(cause(&self.path, &error)))?;
        self.commit()
    }
}

/// The file that the user named, and the system's reason; not the name of a temporary file.
pub fn cause(path: &Path, error: &std::io::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" at path \"").next().unwrap_or_default();
    format!("{}: {reason}", path.display())
}

/// Two outputs under one name: the second would replace the first.
pub fn refuse_same_file(first: Option<&Path>, second: Option<&Path>) -> Result<(), Failure> {
    match (first, second) {
        (Some(first), Some(second)) if place_of(first) == place_of(second) && !is_special(first) => {
            Err(Failure::bad_input(format!("{}: two outputs can't share one file", first.display())))
        }
        _ => Ok(()),
    }
}

/// The same for `a` and `./a`, also before there is such a file.
fn place_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let real = std::fs::canonicalize(path).or_else(|_| {
        std::fs::canonicalize(folder).map(|folder| folder.join(path.file_name().unwrap_or_default()))
    });
    real.unwrap_or_else(|_| path.to_owned())
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
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

/// A line on standard error. That nobody reads it neither ends a command nor changes its exit code.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", plain(&line.to_string()));
}

/// Prints to standard output; a reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    print_as_it_is(&plain(text))
}

/// A description, a file's or a guest's name may hold anything: no byte of theirs commands the terminal.
fn plain(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// As [`print`], control characters included.
pub fn print_as_it_is(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of writing to standard output.
pub fn printed(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::broken(format_args!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// JSON for scripts, on standard output.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// A mean over seeds, as all JSON has it.
pub fn estimate(of: microslice_metrics::Estimate) -> serde_json::Value {
    serde_json::json!({ "mean": of.mean, "ci95": [of.low, of.high], "runs": of.count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_shown_and_not_obeyed() {
        assert_eq!(plain("a\x1b[2Jb\r\0\u{9b}c\n\td"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c\n\td");
    }
}
