//! VMs' places, `bpf/core/vcpu.bpf.h`: every interleaving of threads that join and leave, of KVM that frees a
//! VM, and of another VM that comes to its address.
//!
//! A model: each step is one atomic access of the C, in its order. What it finds in two ways to do it wrong
//! shows that it would find more.

use std::collections::{BTreeMap, HashSet};

const FREE: u32 = 0;
const OPEN: u32 = 1;
const CLOSING: u32 = u32::MAX;

/// How a place is given back, and an address forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// As in the C.
    Ours,
    /// A task that finds no holder of the place closes it, without a second look.
    CloseUnseen,
    /// KVM frees a VM: whatever address the place has is forgotten.
    ForgetAnyAddress,
    /// An owner's places are counted before one more is taken, and not after.
    CountBeforeOnly,
}

/// A VM and the address of its `struct kvm`, which another VM may have later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Vm {
    identity: u8,
    address: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum After {
    /// It tries to join again.
    ComeAgain,
    Done,
}

/// Where a thread is: each is one access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    LookUp,
    Hold(usize),
    Raise(usize, u32),
    IsItOurs(usize),
    Claim(usize),
    Own(usize),
    /// Of the owner's places, those before the second are so many.
    CountOwned(usize, usize, usize),
    Insert(usize),
    Name(usize),
    Joined(usize),
    LetGo(usize, After),
    Close(usize, After),
    ForgetIfAny(usize, After),
    TakeAddress(usize, u8, After),
    DeleteAddress(usize, u8, After),
    Free(usize, After),
    /// Of KVM, which frees the VM, once the thread that it names holds a place.
    WaitFor(usize),
    FindAddress(usize),
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Thread {
    vm: Vm,
    at: At,
    /// Attempts to join that it has left.
    attempts: u8,
    /// It frees the VM: it holds no place.
    is_kvm: bool,
    /// It begins once this one has ended: its VM's memory comes from that of another.
    after: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slot {
    in_use: u32,
    address: u8,
    /// By the one owner that there is.
    is_owned: bool,
}

impl Slot {
    fn counts(&self) -> bool {
        self.is_owned && ![FREE, OPEN, CLOSING].contains(&self.in_use)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct World {
    slots: Vec<Slot>,
    /// How many places the owner may have.
    owners_part: usize,
    by_address: BTreeMap<u8, usize>,
    threads: Vec<Thread>,
}

impl World {
    /// One step of a thread; false: it has none now.
    fn step(&mut self, index: usize, rules: Rules) -> bool {
        let thread = &self.threads[index];
        let is_ready = thread.after.is_none_or(|before| self.threads[before].at == At::End);
        if !is_ready || thread.at == At::End {
            return false;
        }
        let address = thread.vm.address;
        let forgets_any = rules == Rules::ForgetAnyAddress;
        let next = match thread.at {
            At::LookUp | At::Hold(_) | At::Raise(..) | At::IsItOurs(_) => self.hold(index, address),
            At::Claim(_) | At::Own(_) | At::CountOwned(..) | At::Insert(_) | At::Name(_) => {
                self.claim(index, address, rules)
            }
            At::Joined(_) | At::LetGo(..) | At::Close(..) => self.leave(index, rules),
            At::ForgetIfAny(..) | At::TakeAddress(..) | At::DeleteAddress(..) | At::Free(..) => {
                self.give_back(index)
            }
            At::WaitFor(other) => match self.threads[other].at {
                At::Joined(slot) if forgets_any => At::FindAddress(slot),
                At::Joined(slot) => At::TakeAddress(slot, address, After::Done),
                At::End => At::End,
                _ => return false,
            },
            At::FindAddress(slot) => At::ForgetIfAny(slot, After::Done),
            At::End => unreachable!(),
        };
        self.threads[index].at = next;
        true
    }

    /// A thread looks for its VM's place, to hold it with the others.
    fn hold(&mut self, index: usize, address: u8) -> At {
        match self.threads[index].at {
            At::LookUp => match self.by_address.get(&address) {
                Some(slot) => At::Hold(*slot),
                None if self.owned() < self.owners_part => At::Claim(0),
                None => self.come_again(index),
            },
            At::Hold(slot) => match self.slots[slot].in_use {
                FREE | CLOSING => self.come_again(index),
                holders => At::Raise(slot, holders),
            },
            At::Raise(slot, holders) if self.slots[slot].in_use == holders => {
                self.slots[slot].in_use = holders + 1;
                At::IsItOurs(slot)
            }
            At::Raise(slot, _) => At::Hold(slot),
            At::IsItOurs(slot) if self.slots[slot].address == address => At::Joined(slot),
            At::IsItOurs(slot) => At::LetGo(slot, After::ComeAgain),
            at => unreachable!("{at:?} holds no place that is there"),
        }
    }

    /// It takes a free one for its VM, which has none.
    fn claim(&mut self, index: usize, address: u8, rules: Rules) -> At {
        match self.threads[index].at {
            At::Claim(slot) if slot == self.slots.len() => self.come_again(index),
            At::Claim(slot) if self.slots[slot].in_use == FREE => {
                self.slots[slot].in_use = OPEN + 1;
                At::Own(slot)
            }
            At::Claim(slot) => At::Claim(slot + 1),
            At::Own(slot) => {
                self.slots[slot].is_owned = true;
                if rules == Rules::CountBeforeOnly { At::Insert(slot) } else { At::CountOwned(slot, 0, 0) }
            }
            At::CountOwned(slot, next, owned) if next < self.slots.len() => {
                At::CountOwned(slot, next + 1, owned + usize::from(self.slots[next].counts()))
            }
            At::CountOwned(slot, _, owned) if owned > self.owners_part => At::LetGo(slot, After::ComeAgain),
            At::CountOwned(slot, ..) => At::Insert(slot),
            At::Insert(slot) if self.by_address.contains_key(&address) => At::LetGo(slot, After::ComeAgain),
            At::Insert(slot) => {
                self.by_address.insert(address, slot);
                At::Name(slot)
            }
            At::Name(slot) => {
                self.slots[slot].address = address;
                At::Joined(slot)
            }
            at => unreachable!("{at:?} claims nothing"),
        }
    }

    /// It lets go; the last to do so closes the place.
    fn leave(&mut self, index: usize, rules: Rules) -> At {
        match self.threads[index].at {
            At::Joined(slot) => At::LetGo(slot, After::Done),
            At::LetGo(slot, after) => {
                self.slots[slot].in_use = self.slots[slot].in_use.wrapping_sub(1);
                if rules == Rules::CloseUnseen && self.slots[slot].in_use == OPEN {
                    At::ForgetIfAny(slot, after)
                } else {
                    At::Close(slot, after)
                }
            }
            At::Close(slot, after) if self.slots[slot].in_use == OPEN => {
                self.slots[slot].in_use = CLOSING;
                At::ForgetIfAny(slot, after)
            }
            At::Close(_, after) => self.go_on(index, after),
            at => unreachable!("{at:?} doesn't leave"),
        }
    }

    /// A closed place's address is forgotten first, and then others may have it.
    fn give_back(&mut self, index: usize) -> At {
        match self.threads[index].at {
            At::ForgetIfAny(slot, after) => match self.slots[slot].address {
                0 => At::Free(slot, after),
                named => At::TakeAddress(slot, named, after),
            },
            At::TakeAddress(slot, named, after) if self.slots[slot].address == named => {
                self.slots[slot].address = 0;
                At::DeleteAddress(slot, named, after)
            }
            At::TakeAddress(slot, _, after) => At::Free(slot, after),
            At::DeleteAddress(slot, named, after) => {
                self.by_address.remove(&named);
                At::Free(slot, after)
            }
            At::Free(..) if self.threads[index].is_kvm => At::End,
            At::Free(slot, after) => {
                self.slots[slot].in_use = FREE;
                self.go_on(index, after)
            }
            at => unreachable!("{at:?} gives nothing back"),
        }
    }

    fn owned(&self) -> usize {
        self.slots.iter().filter(|slot| slot.counts()).count()
    }

    fn come_again(&mut self, index: usize) -> At {
        let thread = &mut self.threads[index];
        thread.attempts -= 1;
        if thread.attempts > 0 { At::LookUp } else { At::End }
    }

    fn go_on(&mut self, index: usize, after: After) -> At {
        if after == After::ComeAgain { self.come_again(index) } else { At::End }
    }

    /// What must hold at every moment.
    fn fault(&self) -> Option<&'static str> {
        let joined: Vec<_> = self
            .threads
            .iter()
            .filter_map(|thread| match thread.at {
                At::Joined(slot) => Some((thread.vm, slot)),
                _ => None,
            })
            .collect();
        for (at, (vm, slot)) in joined.iter().enumerate() {
            if [FREE, OPEN, CLOSING].contains(&self.slots[*slot].in_use) {
                return Some("a place that a vCPU holds is free for others");
            }
            for (other, other_slot) in &joined[at + 1..] {
                if vm != other && slot == other_slot {
                    return Some("two VMs have one place");
                }
                if vm == other && slot != other_slot && self.is_there(*vm) {
                    return Some("one VM has two places");
                }
            }
        }
        let places: HashSet<usize> = joined.iter().map(|(_, slot)| *slot).collect();
        if places.len() > self.owners_part {
            return Some("an owner has more places than one may have");
        }
        let is_over = self.threads.iter().all(|thread| thread.at == At::End);
        let is_free = |slot: &Slot| (slot.in_use, slot.address) == (FREE, 0);
        let is_clean = self.by_address.is_empty() && self.slots.iter().all(is_free);
        (is_over && !is_clean).then_some("a place or an address is left when all are gone")
    }

    /// KVM hasn't begun to free it.
    fn is_there(&self, vm: Vm) -> bool {
        let freed_by = |thread: &&Thread| thread.is_kvm && thread.vm == vm;
        self.threads.iter().find(freed_by).is_none_or(|kvm| matches!(kvm.at, At::WaitFor(_)))
    }
}

/// Looks at every state that can be reached; how many, or a fault.
fn explore(start: World, rules: Rules) -> Result<usize, &'static str> {
    let mut seen = HashSet::from([start.clone()]);
    let mut left = vec![start];
    while let Some(world) = left.pop() {
        if let Some(fault) = world.fault() {
            return Err(fault);
        }
        for index in 0..world.threads.len() {
            let mut next = world.clone();
            if next.step(index, rules) && seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    Ok(seen.len())
}

fn thread(identity: u8, address: u8) -> Thread {
    Thread { vm: Vm { identity, address }, at: At::LookUp, attempts: 2, is_kvm: false, after: None }
}

fn world(slot_count: usize, threads: Vec<Thread>) -> World {
    let slots = vec![Slot::default(); slot_count];
    World { slots, owners_part: slot_count, by_address: BTreeMap::new(), threads }
}

/// Two vCPUs of one VM, one of another.
fn three_vcpus() -> World {
    world(2, vec![thread(1, 1), thread(1, 1), thread(2, 2)])
}

/// KVM frees the VM of the first thread, which still holds its place. `others` come meanwhile.
fn a_vm_that_is_freed(others: [Thread; 2]) -> World {
    let frees = Thread { at: At::WaitFor(0), is_kvm: true, ..thread(1, 1) };
    let [one, other] = others;
    world(2, vec![thread(1, 1), frees, one, other])
}

/// They are of a VM that has the same address, once that is free.
fn an_address_that_is_used_again() -> World {
    a_vm_that_is_freed([thread(2, 1), thread(2, 1)].map(|next| Thread { after: Some(1), ..next }))
}

fn a_place_that_is_used_again() -> World {
    a_vm_that_is_freed([thread(3, 3), thread(3, 3)])
}

#[test]
fn one_vm_has_one_place_and_none_is_left_over() {
    for start in [three_vcpus(), an_address_that_is_used_again(), a_place_that_is_used_again()] {
        let states = explore(start, Rules::Ours).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(states > 1000, "{states} states are too few to be all");
    }
}

#[test]
fn closing_a_place_without_a_second_look_fails() {
    assert!(explore(three_vcpus(), Rules::CloseUnseen).is_err());
}

#[test]
fn a_freed_vm_leaves_other_addresses_alone() {
    assert_eq!(explore(a_place_that_is_used_again(), Rules::ForgetAnyAddress), Err("one VM has two places"));
}

/// Three VMs of an owner that may have two places of three.
fn three_vms_of_one_owner() -> World {
    World { owners_part: 2, ..world(3, [1, 2, 3].map(|vm| thread(vm, vm)).to_vec()) }
}

#[test]
fn vms_of_one_owner_keep_to_its_bound_of_places() {
    let states = explore(three_vms_of_one_owner(), Rules::Ours).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(states > 1000, "{states} states are too few to be all");
}

#[test]
fn counting_places_only_before_taking_one_fails() {
    let found = explore(three_vms_of_one_owner(), Rules::CountBeforeOnly);
    assert_eq!(found, Err("an owner has more places than one may have"));
}
