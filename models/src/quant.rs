//! Decoding of stored weights to f32.
//!
//! The block formats are ggml's (`ggml-common.h`, `ggml-quants.c`): a block of 32 weights has one
//! f16 scale (and minimum), a super-block of 256 has sub-blocks whose scales are small integers.

use half::{bf16, f16};

use crate::checkpoint::TensorType;

/// Decodes `data`, whole blocks of `dtype`, into `out`.
///
/// # Panics
/// If `data` does not hold exactly `out.len()` values.
pub fn decode(dtype: TensorType, data: &[u8], out: &mut [f32]) {
    assert_eq!(dtype.row_bytes(out.len()), Some(data.len()), "blocks and values differ in number");
    match dtype {
        TensorType::F32 => blocks(data, out, |b: &[u8; 4], out| out[0] = f32::from_le_bytes(*b)),
        TensorType::F16 => blocks(data, out, |b: &[u8; 2], out| out[0] = half_at(b, 0)),
        TensorType::BF16 => {
            blocks(data, out, |b: &[u8; 2], out| out[0] = bf16::from_le_bytes(*b).to_f32());
        }
        TensorType::Q4_0 => blocks(data, out, q4_0),
        TensorType::Q4_1 => blocks(data, out, q4_1),
        TensorType::Q8_0 => blocks(data, out, q8_0),
        TensorType::Q4_K => blocks(data, out, q4_k),
        TensorType::Q6_K => blocks(data, out, q6_k),
    }
}

/// Runs `one` on each block of `BYTES` bytes and its share of `out`.
fn blocks<const BYTES: usize>(
    data: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32]),
) {
    let (blocks, _) = data.as_chunks::<BYTES>();
    let len = out.len() / blocks.len().max(1);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(len.max(1))) {
        one(block, out);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// `d`, then 16 bytes whose low halves are weights 0..16 and high halves 16..32, minus 8.
fn q4_0(block: &[u8; 18], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = d * (f32::from(byte & 15) - 8.0);
        out[i + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// As [`q4_0`], with a minimum `m` after `d` instead of the fixed offset.
fn q4_1(block: &[u8; 20], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// `d`, then 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(byte.cast_signed());
    }
}

/// `d`, `dmin`, 12 bytes with eight 6-bit scales and minima, 128 bytes of 4-bit weights: each 32
/// bytes hold two sub-blocks, the first in the low halves and the second in the high ones.
fn q4_k(block: &[u8; 144], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, weights) = (&block[4..16], &block[16..]);
    for (pair, (bytes, out)) in weights.chunks(32).zip(out.chunks_mut(64)).enumerate() {
        let (scale_low, min_low) = q4_k_scale(scales, 2 * pair);
        let (scale_high, min_high) = q4_k_scale(scales, 2 * pair + 1);
        for (i, byte) in bytes.iter().enumerate() {
            out[i] = d * scale_low * f32::from(byte & 15) - dmin * min_low;
            out[i + 32] = d * scale_high * f32::from(byte >> 4) - dmin * min_high;
        }
    }
}

/// Scale and minimum of sub-block `j` of eight. The first four lie in the low six bits of bytes
/// 0..4 and 4..8; the last four in bytes 8..12 (four bits each), their top two bits in the top of
/// the first eight bytes.
fn q4_k_scale(scales: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | (scales[j - 4] >> 6) << 4, (low >> 4) | (scales[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// 128 bytes of low halves, 64 bytes of top two bits, 16 signed scales, `d`; weights are 6-bit
/// minus 32. Each half of the block (128 weights) has four groups of 32 that share 64 bytes of low
/// halves and 32 bytes of top bits.
fn q6_k(block: &[u8; 210], out: &mut [f32]) {
    let d = half_at(block, 208);
    for half in 0..2 {
        let low = &block[64 * half..][..64];
        let high = &block[128 + 32 * half..][..32];
        let scales = &block[192 + 8 * half..][..8];
        let out = &mut out[128 * half..][..128];
        for (i, value) in out.iter_mut().enumerate() {
            let (group, lane) = (i / 32, i % 32);
            let byte = low[lane + 32 * (group % 2)];
            let nibble = if group < 2 { byte & 15 } else { byte >> 4 };
            let weight = nibble | (high[lane] >> (2 * group) & 3) << 4;
            let scale = f32::from(scales[i / 16].cast_signed());
            *value = d * scale * (f32::from(weight) - 32.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes one block.
    fn one<const LEN: usize>(dtype: TensorType, block: &[u8]) -> [f32; LEN] {
        let mut out = [f32::NAN; LEN];
        decode(dtype, block, &mut out);
        out
    }

    fn half(value: f32) -> [u8; 2] {
        f16::from_f32(value).to_le_bytes()
    }

    #[test]
    fn floats_are_themselves() {
        let values = [1.5_f32, -0.25, 0.0, -65504.0];
        let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|v| half(*v)).collect();
        assert_eq!(one(TensorType::F32, &f32s), values);
        assert_eq!(one(TensorType::F16, &f16s), values);
        let bf16s: Vec<u8> =
            values[..3].iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        assert_eq!(one::<3>(TensorType::BF16, &bf16s), values[..3]);
    }

    #[test]
    fn blocks_of_32() {
        // Weight i of the first half is i, of the second half 15 - i.
        let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let quant = |i: usize| if i < 16 { i as f32 } else { 31.0 - i as f32 };
        let q4_0 = [&half(0.5)[..], &nibbles].concat();
        assert_eq!(
            one(TensorType::Q4_0, &q4_0),
            std::array::from_fn::<_, 32, _>(|i| { 0.5 * (quant(i) - 8.0) })
        );
        let q4_1 = [&half(0.5)[..], &half(-3.0), &nibbles].concat();
        assert_eq!(
            one(TensorType::Q4_1, &q4_1),
            std::array::from_fn::<_, 32, _>(|i| { 0.5 * quant(i) - 3.0 })
        );
        let bytes: Vec<u8> = (0..32_i8).map(|i| (8 * (i - 16)).cast_unsigned()).collect();
        let q8_0 = [&half(0.25)[..], &bytes].concat();
        assert_eq!(
            one(TensorType::Q8_0, &q8_0),
            std::array::from_fn::<_, 32, _>(|i| { 0.25 * (8.0 * (i as f32 - 16.0)) })
        );
    }

    #[test]
    fn q4_k_super_blocks() {
        // Scales and minima of the eight sub-blocks use all six bits.
        let scales: [u8; 8] = [1, 33, 63, 18, 47, 5, 60, 32];
        let minima: [u8; 8] = [62, 2, 31, 16, 48, 9, 63, 21];
        let mut packed = [0; 12];
        for j in 0..4 {
            packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
            packed[j + 4] = minima[j] | (minima[j + 4] >> 4) << 6;
            packed[j + 8] = (scales[j + 4] & 15) | (minima[j + 4] & 15) << 4;
        }
        let quant = |i: usize| (i * 7 % 16) as u8;
        let weights: Vec<u8> = (0..128)
            .map(|byte| {
                let first = 64 * (byte / 32) + byte % 32;
                quant(first) | quant(first + 32) << 4
            })
            .collect();
        let block = [&half(0.5)[..], &half(0.25), &packed, &weights].concat();
        let expected = std::array::from_fn::<_, 256, _>(|i| {
            let (scale, min) = (f32::from(scales[i / 32]), f32::from(minima[i / 32]));
            0.5 * scale * f32::from(quant(i)) - 0.25 * min
        });
        assert_eq!(one(TensorType::Q4_K, &block), expected);
    }

    #[test]
    fn q6_k_super_blocks() {
        let scale = |i: usize| ((i / 16) as i32 * 13 - 100) as i8;
        let quant = |i: usize| (i * 11 % 64) as u8;
        let (mut low, mut high) = ([0_u8; 128], [0_u8; 64]);
        for i in 0..256 {
            let (half, group, lane) = (i / 128, i % 128 / 32, i % 32);
            low[64 * half + 32 * (group % 2) + lane] |= (quant(i) & 15) << (4 * (group / 2));
            high[32 * half + lane] |= (quant(i) >> 4) << (2 * group);
        }
        let scales: Vec<u8> = (0..16).map(|group| scale(16 * group).cast_unsigned()).collect();
        let block = [&low[..], &high, &scales, &half(0.5)].concat();
        let expected = std::array::from_fn::<_, 256, _>(|i| {
            0.5 * f32::from(scale(i)) * (f32::from(quant(i)) - 32.0)
        });
        assert_eq!(one(TensorType::Q6_K, &block), expected);
    }
}
