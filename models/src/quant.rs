//! Decoding of GGUF's quantised blocks to f32.
