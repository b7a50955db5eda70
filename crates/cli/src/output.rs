//! What a command says and writes: lines that nobody has to read, and files that are complete or not there at
//! all.

use crate::failure::Failure;
use crate::interrupt::Unfinished;
pub use microslice_metrics::html::plain;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// As the kernel follows.
const LINKS_MAX: usize = 40;

/// A file under its final name only after [`OutputFile::commit`]; dropped before, it leaves nothing behind.
pub struct OutputFile {
    path: PathBuf,
    target: Target,
}

enum Target {
    /// Next to where the name leads: the name is given to what is complete.
    Temporary { file: BufWriter<Scratch>, place: PathBuf },
    /// A pipe or a device can't be renamed to.
    InPlace(BufWriter<File>),
}

impl OutputFile {
    /// Opens the output; fails before any work is done if it can't be written, or is one of the `inputs`.
    pub fn create(path: &Path, inputs: &[PathBuf]) -> Result<Self, Failure> {
        let refuse = |error: io::Error| Failure::bad_input(cause(path, &error));
        let place = destination(path).map_err(refuse)?;
        // Scenarios that this run doesn't read are TOML files, too; no output is one.
        if place.is_file() && place.extension().is_some_and(|extension| extension == "toml") {
            let cause = format!("{}: an output would replace this TOML file", path.display());
            return Err(Failure::bad_input(cause));
        }
        if inputs.iter().any(|input| is_same_file(input, &place)) {
            let cause = format!("{}: an output would replace what is read", path.display());
            return Err(Failure::bad_input(cause));
        }
        let target = if is_written_in_place(&place) {
            Target::InPlace(BufWriter::new(open_in_place(&place).map_err(refuse)?))
        } else {
            let file = BufWriter::new(Scratch::beside(&place).map_err(refuse)?);
            Target::Temporary { file, place }
        };
        Ok(Self { path: path.to_owned(), target })
    }

    /// The output that an option asks for, if it does.
    pub fn wanted(path: Option<&Path>, inputs: &[PathBuf]) -> Result<Option<Self>, Failure> {
        path.map(|path| Self::create(path, inputs)).transpose()
    }

    /// Gives the complete file its name.
    pub fn commit(self) -> Result<(), Failure> {
        let path = self.path;
        let broken = |error: &io::Error| Failure::broken(cause(&path, error));
        match self.target {
            Target::InPlace(mut file) => file.flush().map_err(|error| broken(&error)),
            Target::Temporary { file, place } => {
                let file = file.into_inner().map_err(|error| broken(error.error()))?;
                file.name(&place).map_err(|error| broken(&error))
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
pub fn cause(path: &Path, error: &io::Error) -> String {
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
    let place = destination(path).unwrap_or_else(|_| path.to_owned());
    let real = std::fs::canonicalize(&place).or_else(|_| {
        let folder = std::fs::canonicalize(folder_of(&place));
        folder.map(|folder| folder.join(place.file_name().unwrap_or_default()))
    });
    real.unwrap_or(place)
}

/// Where writing to a name leads: through its links, which stay what they are.
fn destination(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        if is_of_a_process(&place) {
            return Ok(place);
        }
        match std::fs::read_link(&place) {
            Ok(target) => place = folder_of(&place).join(target),
            // No link, or nothing at all yet.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => {
                let is_folder =
                    [&b"/"[..], b"/."].iter().any(|end| place.as_os_str().as_bytes().ends_with(end));
                return if is_folder { Err(ErrorKind::IsADirectory.into()) } else { Ok(place) };
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many links, one to the next"))
}

fn is_written_in_place(place: &Path) -> bool {
    is_of_a_process(place) || is_special(place)
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// `/dev/stdout` leads there: a link in words only, to a file that a process has open.
fn is_of_a_process(place: &Path) -> bool {
    std::fs::canonicalize(folder_of(place)).is_ok_and(|folder| folder.starts_with("/proc"))
}

/// Our own streams are shared, not opened anew: what is printed afterwards follows what was written.
fn open_in_place(place: &Path) -> io::Result<File> {
    let ours = std::fs::canonicalize("/proc/self/fd").ok();
    let is_ours =
        ours.is_some_and(|ours| std::fs::canonicalize(folder_of(place)).is_ok_and(|folder| folder == ours));
    match place.file_name().and_then(|name| name.to_str()).filter(|_| is_ours) {
        Some("1") => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        Some("2") => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        _ => open_if_read(place),
    }
}

/// To open a pipe that nobody reads waits for a reader.
fn open_if_read(place: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(place, flags, Mode::empty()).map_err(|error| match error {
        Errno::NXIO => io::Error::other("nobody reads this pipe: begin to read it first"),
        error => error.into(),
    })?;
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file.into())
}

fn folder_of(place: &Path) -> &Path {
    place.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// A file that isn't complete yet.
enum Scratch {
    /// It is gone with its process, whatever ends that.
    Nameless(File),
    /// Where the file system has no files without names.
    Named(NamedTempFile, #[expect(dead_code, reason = "removes the file if a signal comes")] Unfinished),
}

impl Scratch {
    /// Readable to those who may read the file that it replaces; a new one is as any program creates it.
    fn beside(place: &Path) -> io::Result<Self> {
        let replaced = std::fs::metadata(place).ok().map(|file| file.permissions().mode() & 0o777);
        let permissions = Permissions::from_mode(replaced.unwrap_or(0o666));
        let folder = folder_of(place);
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let scratch = match rustix::fs::open(folder, flags, Mode::from_raw_mode(permissions.mode())) {
            Ok(file) if can_be_named() => Self::Nameless(file.into()),
            _ => {
                let file = tempfile::Builder::new().permissions(permissions.clone()).tempfile_in(folder)?;
                let unfinished = Unfinished::file(file.path());
                Self::Named(file, unfinished)
            }
        };
        if replaced.is_some() {
            scratch.file().set_permissions(permissions)?;
        }
        Ok(scratch)
    }

    fn file(&self) -> &File {
        match self {
            Self::Nameless(file) => file,
            Self::Named(file, _) => file.as_file(),
        }
    }

    fn name(self, place: &Path) -> io::Result<()> {
        let file = match self {
            Self::Named(file, _) => return file.persist(place).map(drop).map_err(|error| error.error),
            Self::Nameless(file) => file,
        };
        let link = |to: &Path| link_to(&file, to);
        match link(place) {
            // Only a file with a name can take another one's place.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let named = tempfile::Builder::new().make_in(folder_of(place), link)?;
                named.into_temp_path().persist(place).map_err(|error| error.error)
            }
            linked => linked,
        }
    }
}

/// The descriptors of this process give names to files that have none.
fn can_be_named() -> bool {
    Path::new("/proc/self/fd").is_dir()
}

fn link_to(file: &File, to: &Path) -> io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
}

impl Write for Scratch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.target {
            Target::Temporary { file, .. } => file.write(bytes),
            Target::InPlace(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Temporary { file, .. } => file.flush(),
            Target::InPlace(file) => file.flush(),
        }
    }
}

/// A line on standard error. That nobody reads it neither ends a command nor changes its exit code.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", plain(&line.to_string()));
}

/// Prints to standard output; a reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    print_as_it_is(&plain(text))
}

/// As [`print`], control characters included.
pub fn print_as_it_is(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of writing to standard output.
pub fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
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
