//! debuginfod over a loopback server that speaks just enough HTTP.

use crate::common::linked_kernel;
use microslice_symbols::source;
use microslice_symbols::store::debuginfod::Debuginfod;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

/// Answers `answers.len()` requests, then ends with the paths that were asked for.
struct Server {
    url: String,
    requests: JoinHandle<Vec<String>>,
}

impl Server {
    fn answering(answers: Vec<(&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = std::thread::spawn(move || {
            let serve = |(status, body): (&str, Vec<u8>)| serve_one(&listener, status, &body);
            answers.into_iter().map(serve).collect()
        });
        Self { url, requests }
    }

    fn asked_for(self) -> Vec<String> {
        self.requests.join().unwrap()
    }
}

fn serve_one(listener: &TcpListener, status: &str, body: &[u8]) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let request = read_head(&mut stream);
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // The client hangs up when it has seen enough.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    request.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A debug file: any kernel with a symbol table and a build ID is one.
fn debug_file() -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = linked_kernel(folder.path());
    let build_id = source::open(&path).unwrap().kernel.symbols.identity().build_id.clone();
    (std::fs::read(path).unwrap(), build_id.expect("a build ID"))
}

#[test]
fn symbols_come_from_the_first_server_that_has_the_build() {
    let (file, build_id) = debug_file();
    let empty = Server::answering(vec![("404 Not Found", Vec::new())]);
    let full = Server::answering(vec![("200 OK", file.clone())]);
    let servers = Debuginfod::of_urls(&format!("{} {}/", empty.url, full.url));
    let mut fetched_bytes = 0;
    let symbols = servers.fetch(&build_id, &mut |bytes| fetched_bytes = bytes).unwrap();
    assert!(symbols.iter().any(|symbol| symbol.name == "function_7"));
    assert_eq!(symbols.identity().build_id.as_deref(), Some(build_id.as_str()));
    assert_eq!(fetched_bytes, file.len() as u64);
    let path = format!("/buildid/{build_id}/debuginfo");
    assert_eq!((empty.asked_for(), full.asked_for()), (vec![path.clone()], vec![path]));
}

#[test]
fn a_file_of_another_build_is_refused() {
    let (file, _) = debug_file();
    let server = Server::answering(vec![("200 OK", file)]);
    let error = Debuginfod::of_urls(&server.url).fetch("abcdef", &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!(
            "{}/buildid/abcdef/debuginfo: asked for build ID abcdef, got ",
            server.url
        )),
        "{error}"
    );
}

#[test]
fn an_answer_that_is_no_elf_file_is_refused() {
    let server = Server::answering(vec![("200 OK", b"<html>sign in</html>".to_vec())]);
    let error = Debuginfod::of_urls(&server.url).fetch("abcdef", &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("offset 0x0: ELF: "), "{error}");
}

#[test]
fn a_server_that_is_down_and_a_build_id_that_is_none_are_errors() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let servers = Debuginfod::of_urls(&format!("http://{gone}"));
    assert!(
        servers.fetch("abcdef", &mut |_| ()).unwrap_err().to_string().starts_with(&format!("http://{gone}/"))
    );
    let error = servers.fetch("../../etc/passwd", &mut |_| ()).unwrap_err().to_string();
    assert_eq!(error, "no symbols: \"../../etc/passwd\" is no build ID");
}
