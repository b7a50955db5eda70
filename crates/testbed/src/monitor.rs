//! The emulator's monitor: where the emulated host's CPUs are, also when its kernel doesn't answer.
//!
//! Without it nobody could tell a CPU whose kernel loops from one that the emulator let stand still.

use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A monitor that doesn't answer within this won't: it needs no emulated CPU.
const PATIENCE: Duration = Duration::from_secs(5);
/// Two looks this far apart tell a CPU that runs from one that doesn't.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// So much of a stack is looked through: 4 KiB.
const STACK_WORDS: u32 = 512;
/// So many events at most come before an answer, each a line; more come from an emulator gone mad.
const ANSWER_LINES: usize = 64;

pub struct Monitor {
    /// What QEMU inherits; ours to close once it has.
    theirs: Mutex<Option<UnixStream>>,
    fd: RawFd,
    ours: Mutex<Session>,
}

struct Session {
    /// The same reader for all answers: it may have read into the line after the last one.
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    greeted: bool,
}

impl Monitor {
    pub fn new() -> Result<Self> {
        let failed = |cause| Error::file("the emulator's monitor", cause);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        ours.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let fd = theirs.as_raw_fd();
        let writer = ours.try_clone().map_err(failed)?;
        let session = Session { reader: BufReader::new(ours), writer, greeted: false };
        Ok(Self { theirs: Mutex::new(Some(theirs)), fd, ours: Mutex::new(session) })
    }

    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// QEMU has its end now: if that closes, nobody else has it.
    pub fn handed_over(&self) {
        lock(&self.theirs).take();
    }

    /// QEMU's arguments for it.
    pub fn arguments(&self) -> [String; 4] {
        let chardev = format!("socket,id=monitor,fd={}", self.fd);
        ["-chardev".into(), chardev, "-mon".into(), "chardev=monitor,mode=control".into()]
    }

    /// A line per CPU of the emulated host: where it is, and a second later; or why nobody knows.
    pub fn cpus(&self) -> String {
        let look = || self.ask("info registers -a").map(|text| cpus_of(&text));
        let looks = look().and_then(|first| {
            std::thread::sleep(BETWEEN_LOOKS);
            Ok((first, look()?))
        });
        match looks {
            Ok((first, second)) => describe(&first, &second) + &self.stacks(&first, &second),
            Err(why) => format!("the emulator's monitor doesn't answer: {why}"),
        }
    }

    /// Of CPUs that neither moved nor halt: what they have on their stacks of the kernel's code, where a lock
    /// was taken that is never released; and what their registers point to, with the word there: the lock
    /// that they wait for is one of them.
    fn stacks(&self, first: &[Cpu], second: &[Cpu]) -> String {
        let stands_still = |(cpu, later): (&Cpu, &Cpu)| cpu.fields == later.fields && !cpu.halts();
        let still = (0..).zip(first.iter().zip(second)).filter(|&(_, cpus)| stands_still(cpus));
        let stack = |(number, (cpu, _)): (u32, (&Cpu, &Cpu))| {
            let words = self.ask_cpu(Some(number), &format!("x /{STACK_WORDS}gx $rsp"));
            let code = words.map_or_else(|why| why, |text| code_of(&text).join(" "));
            let pointers = cpu.pointers.iter().map(|(register, address)| {
                let word = self.ask_cpu(Some(number), &format!("x /1wx 0x{address}"));
                let word = word.ok().and_then(|text| Some(text.split_once(": ")?.1.trim().to_owned()));
                format!(" {register}={address}[{}]", word.as_deref().unwrap_or("unknown"))
            });
            let pointers: String = pointers.collect();
            format!("\n    | {} stack: {code}\n    | {} points to:{pointers}", cpu.name, cpu.name)
        };
        still.map(stack).collect()
    }

    /// Stops all CPUs between two instructions, and lets them go on.
    pub fn stop_and_go_on(&self) -> Result<(), String> {
        self.ask("stop").and_then(|_| self.ask("cont")).map(drop)
    }

    fn ask(&self, command: &str) -> Result<String, String> {
        self.ask_cpu(None, command)
    }

    /// Of one CPU, if it matters of which.
    fn ask_cpu(&self, cpu: Option<u32>, command: &str) -> Result<String, String> {
        let mut session = lock(&self.ours);
        if !session.greeted {
            session.send(&json!({"execute": "qmp_capabilities"}))?;
            session.answer()?;
            session.greeted = true;
        }
        let mut arguments = json!({"command-line": command});
        if let Some(cpu) = cpu {
            arguments["cpu-index"] = json!(cpu);
        }
        session.send(&json!({"execute": "human-monitor-command", "arguments": arguments}))?;
        let answer = session.answer()?;
        answer.as_str().map(str::to_owned).ok_or_else(|| format!("it answered {answer}"))
    }
}

/// What a thread that panicked left behind is still usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn send(&mut self, request: &Value) -> Result<(), String> {
        writeln!(self.writer, "{request}").map_err(|cause| said(&cause))
    }

    /// The next answer; events and the greeting on the way to it are skipped.
    fn answer(&mut self) -> Result<Value, String> {
        for _ in 0..ANSWER_LINES {
            let mut line = String::new();
            if self.reader.read_line(&mut line).map_err(|cause| said(&cause))? == 0 {
                return Err("it is gone".into());
            }
            let value: Value = serde_json::from_str(&line).map_err(|cause| cause.to_string())?;
            if let Some(answer) = value.get("return") {
                return Ok(answer.clone());
            }
            if let Some(error) = value.get("error") {
                return Err(error.to_string());
            }
        }
        Err("it says too much".into())
    }
}

fn said(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::WouldBlock => "not in time".into(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => "it is gone".into(),
        _ => cause.to_string(),
    }
}

/// What tells where a CPU is: instruction and stack pointer, page table, flags and whether it halts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Cpu {
    name: String,
    /// By their place in [`TELLING`].
    fields: BTreeMap<usize, String>,
    /// General registers that hold addresses of the kernel's, as printed.
    pointers: Vec<(String, String)>,
}

const TELLING: [&str; 6] = ["RIP", "RSP", "CR3", "RFL", "CPL", "HLT"];
const GENERAL: [&str; 15] =
    ["RAX", "RBX", "RCX", "RDX", "RSI", "RDI", "RBP", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"];

impl Cpu {
    fn halts(&self) -> bool {
        self.fields.iter().any(|(&at, value)| TELLING[at] == "HLT" && value != "0")
    }
}

/// Of a dump of memory, `ADDRESS: 0xWORD 0xWORD` a line, the words that may be addresses in the kernel's code
/// or its modules'.
fn code_of(dump: &str) -> Vec<&str> {
    let words =
        dump.lines().filter_map(|line| line.split_once(':')).flat_map(|(_, words)| words.split_whitespace());
    let words = words.filter_map(|word| word.strip_prefix("0x"));
    words.filter(|word| word.len() == 16 && word.starts_with("ffffffff")).collect()
}

/// Reads what `info registers -a` prints: a heading per CPU, then `NAME=value` pairs.
fn cpus_of(text: &str) -> Vec<Cpu> {
    let mut cpus: Vec<Cpu> = Vec::new();
    for line in text.lines() {
        if line.starts_with("CPU#") {
            cpus.push(Cpu { name: line.trim().to_owned(), ..Cpu::default() });
        }
        let Some(cpu) = cpus.last_mut() else { continue };
        // Short names are padded: "R8 =00".
        for word in line.replace(" =", "=").split_whitespace() {
            let Some((name, value)) = word.split_once('=') else { continue };
            if let Some(at) = TELLING.iter().position(|telling| *telling == name) {
                cpu.fields.insert(at, value.to_owned());
            }
            if GENERAL.contains(&name) && value.len() == 16 && value.starts_with("ff") {
                cpu.pointers.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    cpus
}

fn describe(first: &[Cpu], second: &[Cpu]) -> String {
    let mut text = String::from("its CPUs, and a second later:");
    for (cpu, later) in first.iter().zip(second) {
        let print = |(at, value): (&usize, &String)| format!("{}={value}", TELLING[*at]);
        let fields: Vec<String> = cpu.fields.iter().map(print).collect();
        let changed = later.fields.iter().filter(|(at, value)| cpu.fields.get(at) != Some(value));
        let changed: Vec<String> = changed.map(print).collect();
        let change = if changed.is_empty() { "the same".into() } else { changed.join(" ") };
        text += &format!("\n    | {} {}; then {change}", cpu.name, fields.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTERS: &str = "\r\nCPU#0\r\nRAX=0000000000000001 RBX=0000000000000000 RCX=1 RDX=2\r\n\
        RIP=ffffffff81001000 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\n\
        CR0=80050033 CR2=0000 CR3=0000000002610000 CR4=00350ef0\r\n\r\n\
        CPU#1\r\nRIP=ffffffff82000000 RFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\r\n";

    #[test]
    fn a_cpu_that_stands_still_is_told_from_one_that_runs() {
        let first = cpus_of(REGISTERS);
        let second = cpus_of(&REGISTERS.replace("ffffffff82000000", "ffffffff82000040"));
        assert_eq!(
            describe(&first, &second),
            "its CPUs, and a second later:\n    \
             | CPU#0 RIP=ffffffff81001000 CR3=0000000002610000 RFL=00000246 CPL=0 HLT=1; then the same\n    \
             | CPU#1 RIP=ffffffff82000000 RFL=00000002 CPL=0 HLT=0; then RIP=ffffffff82000040"
        );
    }

    #[test]
    fn of_a_stack_the_kernels_addresses_are_shown() {
        let dump = "ff8db47c000039c0: 0xffffffff81234567 0x0000000000000246\r\nff8db47c000039d0: 0xff110000deadbeef 0xffffffffc0401000\r\n";
        assert_eq!(code_of(dump), ["ffffffff81234567", "ffffffffc0401000"]);
        let cpu = |halts: &str| cpus_of(&format!("CPU#0\r\nRIP=1 HLT={halts}\r\n")).remove(0);
        assert!(cpu("1").halts() && !cpu("0").halts());
    }

    #[test]
    fn registers_that_point_into_the_kernel_are_told_from_others() {
        let text = "CPU#0\r\nRAX=0000000000000001 R8 =ff11000004c3a240 RSP=ff8db47c000039c0\r\nR12=ffffffff83000040 CR3=ffffffff83000040\r\n";
        let pointers = [("R8", "ff11000004c3a240"), ("R12", "ffffffff83000040")];
        assert_eq!(cpus_of(text)[0].pointers, pointers.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn events_around_an_answer_are_passed_over_even_if_they_come_in_pieces() {
        let monitor = Monitor::new().expect("a pair");
        let mut emulator = lock(&monitor.theirs).take().expect("its end");
        let said = [
            "{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n{\"return\": \"first\"}\n{\"event\": ",
            "\"RESUME\"}\n{\"return\": \"second\"}\n{\"error\": \"third\"}\n",
        ];
        emulator.write_all(said[0].as_bytes()).expect("write");
        assert_eq!(monitor.ask("stop"), Ok("first".into()));
        emulator.write_all(said[1].as_bytes()).expect("write");
        assert_eq!(monitor.ask("cont"), Ok("second".into()));
        assert_eq!(monitor.ask("quit"), Err("\"third\"".into()));
    }

    #[test]
    fn an_emulator_that_is_gone_or_silent_is_said_to_be() {
        let monitor = Monitor::new().expect("a pair");
        monitor
            .ours
            .lock()
            .expect("the session")
            .writer
            .set_read_timeout(Some(Duration::from_millis(10)))
            .expect("set");
        assert_eq!(monitor.cpus(), "the emulator's monitor doesn't answer: not in time");
        monitor.handed_over();
        assert_eq!(monitor.cpus(), "the emulator's monitor doesn't answer: it is gone");
    }
}
