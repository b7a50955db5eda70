//! What several tests need.

use microslice_symbols::memory::{Area, Memory};
use std::io;

/// Memory of one area, from address 0 on.
pub struct Ram {
    content: Vec<u8>,
    area: [Area; 1],
}

impl Ram {
    pub fn of(content: Vec<u8>) -> Self {
        let area = [Area { start: 0, bytes: content.len() as u64 }];
        Self { content, area }
    }
}

impl Memory for Ram {
    fn areas(&self) -> &[Area] {
        &self.area
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.content[address as usize..address as usize + buffer.len()]);
        Ok(())
    }
}
