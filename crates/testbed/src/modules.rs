//! Which modules a machine needs, in loading order, unpacked.

use crate::kernels::Kernel;
use crate::packages::run;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// An emulated host with a system of its own: the disk on which that lies.
pub const DISK: [&str; 2] = ["virtio_blk", "ext4"];
/// A guest: its port to the harness and its network card.
pub const GUEST: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_net"];

/// The modules of `kernel` for `wanted`, each after those it depends on: file name and content. One that is
/// built in needs no file; one that this kernel doesn't have at all is left out.
pub fn load_order(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let dependencies = dependencies(kernel)?;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        if let Some((path, depends)) = dependencies.get(&canonical(name)) {
            for path in depends.iter().rev().chain([path]) {
                if seen.insert(path.clone()) {
                    order.push(path.clone());
                }
            }
        }
    }
    order.iter().enumerate().map(|(at, path)| read_module(kernel, at, path)).collect()
}

type Dependencies = BTreeMap<String, (String, Vec<String>)>;

/// Per module its file and the files it depends on, nearest first, from depmod's index (made once per
/// kernel).
fn dependencies(kernel: &Kernel) -> Result<Dependencies> {
    let index = kernel.modules.join("modules.dep");
    if !index.is_file() {
        // depmod wants the root that holds lib/modules/RELEASE.
        let root = kernel.modules.ancestors().nth(3).unwrap_or(Path::new("/"));
        let mut depmod = Command::new("depmod");
        depmod.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        run(depmod.arg("--basedir").arg(root).arg(&kernel.release))?;
    }
    let text = fs::read_to_string(&index).map_err(|cause| Error::file(&index, cause))?;
    Ok(parse_dependencies(&text))
}

fn parse_dependencies(text: &str) -> Dependencies {
    let parse = |line: &str| {
        let (path, depends) = line.split_once(':')?;
        let file = path.rsplit('/').next()?;
        let name = canonical(file.split(".ko").next()?);
        Some((name, (path.to_owned(), depends.split_whitespace().map(str::to_owned).collect())))
    };
    text.lines().filter_map(parse).collect()
}

fn read_module(kernel: &Kernel, at: usize, path: &str) -> Result<(String, Vec<u8>)> {
    let file = kernel.modules.join(path);
    let content = if path.ends_with(".xz") {
        let output = Command::new("xz").args(["--decompress", "--stdout"]).arg(&file).output();
        let output = output.map_err(|cause| Error::Program { program: "xz".into(), cause })?;
        if !output.status.success() {
            return Err(Error::file(&file, String::from_utf8_lossy(&output.stderr)));
        }
        output.stdout
    } else {
        fs::read(&file).map_err(|cause| Error::file(&file, cause))?
    };
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".xz");
    Ok((format!("{at:02}-{name}"), content))
}

/// `kvm-amd` and `kvm_amd` are one module.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_indexed_by_canonical_name() {
        let index = parse_dependencies(
            "kernel/a/kvm-amd.ko.xz: kernel/a/kvm.ko.xz kernel/b/ccp.ko.xz\nkernel/a/kvm.ko.xz:\n",
        );
        assert_eq!(index["kvm_amd"].1, ["kernel/a/kvm.ko.xz", "kernel/b/ccp.ko.xz"]);
        assert!(index["kvm"].1.is_empty());
    }
}
