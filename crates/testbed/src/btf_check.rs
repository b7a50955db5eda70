//! Whether a kernel image describes sched_ext's kfuncs as they can be called.
//!
//! Kernels built with pahole 1.30 describe `scx_bpf_kick_cpu` with the implicit third argument that the
//! verifier is meant to supply. They lack the `_impl` twin that the verifier then looks for, so no scheduler
//! that kicks can load.

use crate::{Error, Result};
use btf_rs::{Btf, BtfType, Type};
use object::{Object, ObjectSection};
use std::path::Path;
use std::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Broken,
    /// The kernel has no sched_ext, or no BTF.
    Absent,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Broken => {
                "broken for sched_ext (scx_bpf_kick_cpu keeps its implicit argument and has no _impl twin)"
            }
            Self::Absent => "without sched_ext",
        })
    }
}

/// The verdict on a bzImage, remembered beside it: decompressing and parsing takes a second.
pub fn of_image(image: &Path) -> Result<Verdict> {
    let note = image.with_file_name("btf-verdict");
    if let Ok(known) = std::fs::read_to_string(&note) {
        match known.trim() {
            "good" => return Ok(Verdict::Good),
            "broken" => return Ok(Verdict::Broken),
            "absent" => return Ok(Verdict::Absent),
            _ => {}
        }
    }
    let vmlinux = vmlinux_of(image)?;
    let verdict = of_vmlinux(&vmlinux).map_err(|cause| Error::file(image, cause))?;
    let word = match verdict {
        Verdict::Good => "good",
        Verdict::Broken => "broken",
        Verdict::Absent => "absent",
    };
    std::fs::write(&note, word).map_err(|cause| Error::file(&note, cause))?;
    Ok(verdict)
}

fn of_vmlinux(vmlinux: &[u8]) -> std::result::Result<Verdict, String> {
    let elf = object::File::parse(vmlinux).map_err(|cause| cause.to_string())?;
    let Some(section) = elf.section_by_name(".BTF") else { return Ok(Verdict::Absent) };
    let data = section.data().map_err(|cause| cause.to_string())?;
    let btf = Btf::from_bytes(data).map_err(|cause| format!(".BTF: {cause}"))?;
    let Some(arguments) = argument_count(&btf, "scx_bpf_kick_cpu") else { return Ok(Verdict::Absent) };
    let has_twin = argument_count(&btf, "scx_bpf_kick_cpu_impl").is_some();
    Ok(if arguments <= 2 || has_twin { Verdict::Good } else { Verdict::Broken })
}

/// Returns how many arguments a function has by a kernel's or a module's types.
pub fn argument_count(btf: &Btf, function: &str) -> Option<usize> {
    btf.resolve_types_by_name(function).ok()?.into_iter().find_map(|found| match found {
        Type::Func(func) => match btf.resolve_chained_type(&func as &dyn BtfType).ok()? {
            Type::FuncProto(proto) => Some(proto.parameters.len()),
            _ => None,
        },
        _ => None,
    })
}

/// The ELF file inside a bzImage: the boot protocol's header says where the payload is, its first bytes say
/// how it is packed.
pub fn vmlinux_of(image: &Path) -> Result<Vec<u8>> {
    let bytes = std::fs::read(image).map_err(|cause| Error::file(image, cause))?;
    let word =
        |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let setup_sectors = bytes.get(0x1f1).map(|&n| if n == 0 { 4 } else { usize::from(n) });
    let payload = (|| {
        let start = (setup_sectors? + 1) * 512 + word(0x248)?;
        bytes.get(start..start.checked_add(word(0x24c)?)?)
    })()
    .ok_or_else(|| Error::file(image, "not a bzImage: its header points outside the file"))?;
    let tool: &[&str] = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => &["zstd", "--decompress", "--stdout", "--quiet"],
        [0xfd, b'7', b'z', ..] => &["xz", "--decompress", "--stdout", "--single-stream"],
        [0x1f, 0x8b, ..] => &["gzip", "--decompress", "--stdout"],
        _ => return Err(Error::file(image, "the payload is packed in a way this check doesn't know")),
    };
    let scratch = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
    let (packed, vmlinux) = (scratch.path().join("packed"), scratch.path().join("vmlinux"));
    // The last four bytes of the payload are the unpacked size, which is no part of the stream.
    let stream = &payload[..payload.len().saturating_sub(4)];
    std::fs::write(&packed, stream).map_err(|cause| Error::file(&packed, cause))?;
    let open = |path: &Path| std::fs::File::open(path).map_err(|cause| Error::file(path, cause));
    let out = std::fs::File::create(&vmlinux).map_err(|cause| Error::file(&vmlinux, cause))?;
    let status = Command::new(tool[0]).args(&tool[1..]).stdin(open(&packed)?).stdout(out).status();
    let status = status.map_err(|cause| Error::Program { program: tool[0].into(), cause })?;
    if !status.success() {
        return Err(Error::file(image, format_args!("{} can't unpack its payload ({status})", tool[0])));
    }
    std::fs::read(&vmlinux).map_err(|cause| Error::file(&vmlinux, cause))
}
