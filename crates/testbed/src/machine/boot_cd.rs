//! A CD that boots a kernel: for a machine whose emulator can't load one by itself.

use super::bochs::Bochs;
use crate::memory_file::MemoryFile;
use crate::packages::run;
use crate::{Error, Result};
use std::fs;
use std::path::Path;

/// What the boot loader finds on the CD, and where it lies in the tree.
const LOADER: [(&str, &str); 2] = [
    ("isolinux.bin", "usr/lib/ISOLINUX/isolinux.bin"),
    ("ldlinux.c32", "usr/lib/syslinux/modules/bios/ldlinux.c32"),
];

/// Of the kernel image at `kernel`, with that initramfs and command line.
pub fn make(bochs: &Bochs, kernel: &Path, initrd: &[u8], arguments: &str) -> Result<MemoryFile> {
    let scratch = tempfile::tempdir().map_err(|cause| Error::file(std::env::temp_dir(), cause))?;
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).map_err(|cause| Error::file(&tree, cause))?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, tree.join(name)).map(drop).map_err(|cause| Error::file(from, cause))
    };
    let write = |name: &str, content: &[u8]| {
        fs::write(tree.join(name), content).map_err(|cause| Error::file(tree.join(name), cause))
    };
    for (name, path) in LOADER {
        copy(&bochs.file(path), name)?;
    }
    copy(kernel, "vmlinuz")?;
    write("initrd", initrd)?;
    let entry = format!("kernel /vmlinuz\n append initrd=/initrd {arguments}\n");
    write("isolinux.cfg", format!("default host\nprompt 0\nlabel host\n {entry}").as_bytes())?;

    let image = scratch.path().join("cd");
    let mut writer = bochs.cd_writer();
    writer.args(["-as", "mkisofs", "-quiet", "-r", "-b", "isolinux.bin", "-c", "boot.cat"]);
    writer.args(["-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "-o"]);
    run(writer.arg(&image).arg(&tree))?;
    MemoryFile::new(&fs::read(&image).map_err(|cause| Error::file(&image, cause))?)
}
