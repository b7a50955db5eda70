//! Guest kernels: images, kallsyms, System.map and ELF become symbols, symbols become critical classes, halt addresses become KASLR slides. Depends on nothing else of ours.
