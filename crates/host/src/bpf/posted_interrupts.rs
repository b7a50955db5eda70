//! What our programs see of interrupts that were posted to a vCPU, on a host whose CPUs can't post any
//! (`bpf/posted_interrupts.bpf.c`).

use crate::HostError;
use crate::bpf::warnings::{keep_warnings, load_failure};
use crate::interface::{MADE_APIC_BYTES, MADE_REGISTERS_BYTES, MADE_VCPU_BYTES, RunConfig};
use crate::machine::preflight;
use crate::posted_interrupts_skeleton::{PostedInterruptsSkel, PostedInterruptsSkelBuilder, types};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use microslice_policy::{Code, Coded, SiblingAnswer};
use serde_json::{Value, json};
use std::mem::MaybeUninit;

/// A vCPU that is made to look at: where its KVM keeps what, in bytes, and what was posted to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeVcpu {
    /// `arch.apic` of `struct kvm_vcpu`.
    apic_at: usize,
    /// `regs` of `struct kvm_lapic`.
    registers_at: usize,
    /// `pir` of `struct vcpu_vmx`.
    posted_at: usize,
    vectors: Vec<u8>,
}

impl std::str::FromStr for MadeVcpu {
    type Err = String;

    /// Reads three offsets, and after a colon vectors: `2480,160,6528:251,49`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?}: must be APIC,REGISTERS,POSTED:VECTOR,…");
        let (places, vectors) = text.split_once(':').ok_or_else(bad)?;
        let places = places.split(',').map(|place| place.parse().map_err(|_| bad()));
        let places: Vec<usize> = places.collect::<Result<_, _>>()?;
        let vectors = vectors.split(',').filter(|vector| !vector.is_empty());
        let vectors = vectors.map(|vector| vector.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let [apic_at, registers_at, posted_at] = places[..] else { return Err(bad()) };
        let ends = [(apic_at, 8, VCPU), (registers_at, 8, APIC), (posted_at, 32, VCPU)];
        if ends.into_iter().any(|(at, length, room)| at > room - length) {
            return Err(format!("{text:?}: a place is beyond {VCPU} bytes of a vCPU or {APIC} of its APIC"));
        }
        Ok(Self { apic_at, registers_at, posted_at, vectors })
    }
}

const VCPU: usize = MADE_VCPU_BYTES as usize;
const APIC: usize = MADE_APIC_BYTES as usize;

impl MadeVcpu {
    /// Returns the bytes of it and of its APIC, of which the first is at `address`.
    fn bytes(&self, address: u64) -> Vec<u8> {
        let mut bytes = vec![0; VCPU + APIC + MADE_REGISTERS_BYTES as usize];
        let mut point = |at: usize, to: usize| {
            bytes[at..at + 8].copy_from_slice(&(address + to as u64).to_le_bytes());
        };
        point(self.apic_at, VCPU);
        point(VCPU + self.registers_at, VCPU + APIC);
        for vector in self.vectors.iter().map(|vector| usize::from(*vector)) {
            bytes[self.posted_at + vector / 8] |= 1 << (vector % 8);
        }
        bytes
    }

    /// Returns which vectors the programs see as pending, and whether they see a call that wants an answer.
    ///
    /// # Errors
    /// The program can't be loaded or run here.
    pub fn seen(&self, verbose: bool) -> Result<Value, HostError> {
        let host = preflight::check_beside()?;
        keep_warnings();
        let failed = |error: libbpf_rs::Error| load_failure(&error, verbose);
        let mut storage = MaybeUninit::uninit();
        let mut open = PostedInterruptsSkelBuilder::default().open(&mut storage).map_err(failed)?;
        let config = RunConfig { vendor: Code::raw(host.vendor as u32), ..RunConfig::default() };
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
        // SAFETY: the skeleton's struct and ours are of one header, and both are plain numbers.
        rodata.config = unsafe { std::mem::transmute::<RunConfig, types::run_config>(config) };
        let mut skeleton = open.load().map_err(failed)?;
        let address = look(&mut skeleton, 0).map_err(failed)?.0;
        let key = 0u32.to_ne_bytes();
        let made = &skeleton.maps.made_vcpus;
        made.update(&key, &self.bytes(address), MapFlags::ANY).map_err(failed)?;
        let mut pending = Vec::new();
        let mut calls = SiblingAnswer::Unknown.name();
        for vector in 0..=255 {
            let (_, is_pending, answer) = look(&mut skeleton, vector).map_err(failed)?;
            pending.extend((is_pending != 0).then_some(vector));
            calls = Code::<SiblingAnswer>::raw(answer).get().map_or("?", SiblingAnswer::name);
        }
        Ok(json!({ "pending": pending, "calls": calls }))
    }
}

/// Returns where the vCPU is, whether that vector is pending, and the answer to calls.
fn look(skeleton: &mut PostedInterruptsSkel<'_>, vector: u32) -> libbpf_rs::Result<(u64, u32, u32)> {
    let data = |skeleton: &mut PostedInterruptsSkel<'_>| {
        let data = skeleton.maps.bss_data.as_deref_mut().expect("the object has data");
        (data.made_vcpu_at, data.is_pending, data.answer)
    };
    skeleton.maps.bss_data.as_deref_mut().expect("the object has data").vector = vector;
    skeleton.progs.look_at_made_vcpu.test_run(ProgramInput::default())?;
    Ok(data(skeleton))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_vcpu_has_pointers_and_bits_where_told() {
        let made: MadeVcpu = "16,8,64:9,255".parse().unwrap();
        let bytes = made.bytes(0x1000);
        let set: Vec<_> = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
        let pointers = [(17, &0x90), (VCPU + 9, &0xa0)];
        assert_eq!(set, [pointers[0], (65, &2), (95, &0x80), pointers[1]]);
    }

    #[test]
    fn places_that_no_vcpu_has_are_refused() {
        for text in ["", "1,2:3", "1,2,3", "1,2,3:256", "1,2,32768:3", "1,4090,3:3"] {
            assert!(text.parse::<MadeVcpu>().is_err(), "{text}");
        }
        assert!("1,2,3:".parse::<MadeVcpu>().is_ok(), "nothing was posted");
    }
}
