//! Symbols by build ID from debuginfod servers (elfutils' protocol: `GET URL/buildid/<id>/debuginfo`).
//!
//! Asked only when `DEBUGINFOD_URLS` is set, as for every other debuginfod client.

use super::is_build_id;
use crate::image::elf;
use crate::{Cause, Error, Place, SymbolTable};
use std::io::{self, Read, Seek, Write};
use std::time::Duration;

/// Largest file that is fetched: a kernel's debug file has 700 MB to 1.2 GB.
const FILE_BYTES_MAX: u64 = 4 << 30;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As long as elfutils waits by default (`DEBUGINFOD_TIMEOUT`) for an answer to begin.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
const TOTAL_TIMEOUT: Duration = Duration::from_secs(1800);

/// Servers to ask, in order.
#[derive(Debug, Clone, Default)]
pub struct Debuginfod {
    urls: Vec<String>,
}

impl Debuginfod {
    /// The servers in `DEBUGINFOD_URLS`, separated by white space; none if it isn't set.
    pub fn from_environment() -> Self {
        Self::of_urls(&std::env::var("DEBUGINFOD_URLS").unwrap_or_default())
    }

    pub fn of_urls(urls: &str) -> Self {
        let is_web = |url: &&str| url.starts_with("http://") || url.starts_with("https://");
        let urls =
            urls.split_ascii_whitespace().filter(is_web).map(|url| url.trim_end_matches('/').to_owned());
        Self { urls: urls.collect() }
    }

    pub fn is_configured(&self) -> bool {
        !self.urls.is_empty()
    }

    /// The symbols of the kernel with this build ID, from the first server that has them. `progress` gets the
    /// bytes fetched so far; what is fetched lies in an unnamed temporary file, gone when the process is.
    ///
    /// # Errors
    /// No server has it; the last server's reason.
    pub fn fetch(&self, build_id: &str, progress: &mut dyn FnMut(u64)) -> Result<SymbolTable, Error> {
        if !is_build_id(build_id) {
            return Err(Error::no_symbols(format!("{build_id:?} is no build ID")));
        }
        let mut failure = Error::no_symbols("DEBUGINFOD_URLS names no server");
        for url in &self.urls {
            let url = format!("{url}/buildid/{build_id}/debuginfo");
            match fetch_symbols(&url, build_id, progress) {
                Ok(symbols) => return Ok(symbols),
                Err(error) => failure = error.of(&url),
            }
        }
        Err(failure)
    }
}

fn fetch_symbols(url: &str, build_id: &str, progress: &mut dyn FnMut(u64)) -> Result<SymbolTable, Error> {
    let failed = |cause: String| Error::new(Place::Whole, Cause::Io(cause));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(RESPONSE_TIMEOUT))
        .timeout_global(Some(TOTAL_TIMEOUT))
        .user_agent(concat!("microslice/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let mut response = agent.get(url).call().map_err(|error| failed(error.to_string()))?;
    let mut file = tempfile::tempfile().map_err(|error| Error::io(&error))?;
    copy_limited(response.body_mut().as_reader(), &mut file, progress)
        .map_err(|error| failed(error.to_string()))?;
    file.rewind().map_err(|error| Error::io(&error))?;
    let cache = object::ReadCache::new(file);
    let symbols = elf::read_symbols_only(&cache)?
        .ok_or_else(|| Error::no_symbols("the file fetched has no symbol table"))?;
    match symbols.identity().build_id.as_deref() {
        Some(found) if found == build_id => Ok(symbols),
        found => Err(failed(format!(
            "asked for build ID {build_id}, got {}",
            found.unwrap_or("a file without one")
        ))),
    }
}

fn copy_limited(mut from: impl Read, to: &mut impl Write, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut buffer = vec![0u8; 256 << 10];
    let mut fetched_bytes = 0u64;
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        fetched_bytes += length as u64;
        if fetched_bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("more than {FILE_BYTES_MAX} bytes: refused")));
        }
        to.write_all(&buffer[..length])?;
        progress(fetched_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_separated_by_white_space_and_must_be_web_addresses() {
        let servers = Debuginfod::of_urls("http://a/  https://b\tfile:///etc ima:enforcing");
        assert_eq!(servers.urls, ["http://a", "https://b"]);
        assert!(!Debuginfod::of_urls("").is_configured());
    }
}
