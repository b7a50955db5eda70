//! The scheduling policies of `policy/`, built natively from the same C that the kernel runs; the only FFI of the project.
