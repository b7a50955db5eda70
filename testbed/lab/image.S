/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest's code, and the table of its symbols, as crates/testbed/build.rs has made them. */
	.section .rodata
	.globl guest_image, guest_image_end, guest_symbols, guest_symbols_end
guest_image:
	.incbin "guest.bin"
guest_image_end:
guest_symbols:
	.incbin "System.map"
guest_symbols_end:
	.section .note.GNU-stack, "", @progbits
