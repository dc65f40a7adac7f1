//! Which instruction sets this machine has.

/// The code paths of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Plain Rust.
    Portable,
}
