//! Products against a plain reference, and against each other on every path.

use super::*;
use crate::activations::{Activations, quantize};
use crate::cpu::Path;
use crate::pool::Pool;
use proptest::prelude::*;

const KINDS: [&str; 5] = ["f32", "quantize", "q4_0", "q4_1", "q8_0"];

/// Numbers in -1..1, reproducible.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// GGUF blocks with random quants and small scales.
fn gguf(seed: u64, blocks: usize, halves: usize, quants: usize) -> Vec<u8> {
    let numbers = noise(seed, blocks * (halves + quants));
    let mut bytes = Vec::new();
    for block in numbers.chunks_exact(halves + quants) {
        for number in &block[..halves] {
            bytes.extend(half::f16::from_f32(number * 0.01).to_le_bytes());
        }
        bytes.extend(block[halves..].iter().map(|number| (number * 127.9) as i8 as u8));
    }
    bytes
}

fn matrix(cpu: Cpu, kind: &str, n: usize, k: usize, seed: u64) -> Matrix {
    let (floats, blocks) = (noise(seed, n * k), n * k / BLOCK);
    match kind {
        "f32" => Matrix::pack(cpu, n, k, Weights::F32(&floats)),
        "quantize" => Matrix::pack(cpu, n, k, Weights::QuantizeQ8_0(&floats)),
        "q4_0" => Matrix::pack(cpu, n, k, Weights::Q4_0(&gguf(seed, blocks, 1, 16))),
        "q4_1" => Matrix::pack(cpu, n, k, Weights::Q4_1(&gguf(seed, blocks, 2, 16))),
        _ => Matrix::pack(cpu, n, k, Weights::Q8_0(&gguf(seed, blocks, 1, 32))),
    }
}

fn filled(pool: &Pool, matrix: &Matrix, rows: usize, values: &[f32]) -> Activations {
    let mut x = Activations::new(rows, matrix.k());
    let k = matrix.k();
    x.fill(pool, rows, matrix.form(), |row, out| out.copy_from_slice(&values[row * k..][..k]));
    x
}

/// What the product reads of a row, as f64.
fn read_back(matrix: &Matrix, values: &[f32]) -> Vec<f64> {
    if matrix.form() == Form::F32 {
        return values.iter().map(|&v| f64::from(v)).collect();
    }
    let mut blocks = vec![Default::default(); values.len() / BLOCK];
    quantize(Cpu::detect(), values, &mut blocks);
    let value = |block: &crate::activations::Block, q: i8| f64::from(block.scale) * f64::from(q);
    blocks.iter().flat_map(|block| block.q.map(|q| value(block, q))).collect()
}

/// The product in f64, and the sum of magnitudes that bounds its rounding errors.
fn reference(matrix: &Matrix, rows: usize, values: &[f32]) -> Vec<(f64, f64)> {
    let mut weights = vec![0.0; matrix.k()];
    let mut out = vec![(0.0, 0.0); rows * matrix.n()];
    for n in 0..matrix.n() {
        matrix.row(n, &mut weights);
        for (r, x) in values.chunks_exact(matrix.k()).take(rows).enumerate() {
            let terms = read_back(matrix, x).into_iter().zip(&weights);
            let terms: Vec<f64> = terms.map(|(x, &w)| x * f64::from(w)).collect();
            let size = terms.iter().map(|term| term.abs()).sum();
            out[r * matrix.n() + n] = (terms.iter().sum(), size);
        }
    }
    out
}

fn assert_close(got: &[f32], want: &[(f64, f64)], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, (want, size))) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= 2e-6 * size + 1e-9, "{what}, output {i}: {got}, not {want}");
    }
}

#[test]
fn packing_keeps_every_weight() {
    let (n, k) = (37, 96);
    let floats = noise(5, n * k);
    for cpu in Cpu::supported() {
        let (exact, rounded) =
            (matrix(cpu, "f32", n, k, 5), Matrix::pack(cpu, n, k, Weights::QuantizeQ8_0(&floats)));
        let (mut a, mut b) = (vec![0.0; k], vec![0.0; k]);
        for (row, want) in floats.chunks_exact(k).enumerate() {
            exact.row(row, &mut a);
            rounded.row(row, &mut b);
            assert_eq!(a, want);
            assert!(b.iter().zip(want).all(|(b, w)| (b - w).abs() < 0.51 / 127.0), "{cpu:?}");
        }
    }
}

#[test]
fn blocks_are_read_as_gguf_defines_them() {
    let q4_0 = gguf(7, 4, 1, 16);
    let q4_1 = gguf(7, 4, 2, 16);
    let q8_0 = gguf(7, 4, 1, 32);
    let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
    let nibble = |q: &[u8], i: usize| f32::from(if i < 16 { q[i] & 15 } else { q[i - 16] >> 4 });
    for cpu in Cpu::supported() {
        for column in 0..128 {
            let (block, i) = (column / BLOCK, column % BLOCK);
            let value = |weights| {
                let mut row = [0.0; 128];
                Matrix::pack(cpu, 1, 128, weights).row(0, &mut row);
                row[column]
            };
            let b = &q4_0[block * 18..];
            assert!(
                (value(Weights::Q4_0(&q4_0)) - half(b) * (nibble(&b[2..], i) - 8.0)).abs() < 1e-6
            );
            let b = &q4_1[block * 20..];
            assert_eq!(value(Weights::Q4_1(&q4_1)), half(b) * nibble(&b[4..], i) + half(&b[2..]));
            let b = &q8_0[block * 34..];
            assert_eq!(value(Weights::Q8_0(&q8_0)), half(b) * f32::from(b[2 + i] as i8));
        }
    }
}

#[test]
fn a_row_is_the_same_bits_in_every_batch_and_with_every_number_of_threads() {
    let (n, k, most) = (57, 96, 40);
    let values = noise(11, most * k);
    let pools = [1, 2, 3].map(Pool::new);
    for (cpu, kind) in Cpu::supported().into_iter().flat_map(|cpu| KINDS.map(|kind| (cpu, kind))) {
        let matrix = matrix(cpu, kind, n, k, 3);
        let mut alone = vec![0.0; most * n];
        for (values, out) in values.chunks_exact(k).zip(alone.chunks_exact_mut(n)) {
            let x = filled(&pools[0], &matrix, 1, values);
            matrix.multiply(&pools[0], &x, 1, out);
        }
        for (rows, pool) in (2..=most).flat_map(|rows| pools.iter().map(move |pool| (rows, pool))) {
            let x = filled(pool, &matrix, rows, &values);
            let mut out = vec![f32::NAN; rows * n];
            matrix.multiply(pool, &x, rows, &mut out);
            assert_eq!(out, alone[..rows * n], "{cpu:?} {kind}, {rows} rows");
        }
    }
}

#[test]
fn many_products_with_biases_equal_single_ones() {
    let pool = Pool::new(2);
    let (k, rows) = (64, 11);
    let values = noise(2, rows * k);
    for cpu in Cpu::supported() {
        let matrices = [matrix(cpu, "q4_1", 40, k, 1), matrix(cpu, "f32", 9, k, 2)];
        let mut x = Activations::new(rows, k);
        let form = Form::of(&matrices.each_ref());
        assert_eq!(form, Form::Both);
        x.fill(&pool, rows, form, |row, out| out.copy_from_slice(&values[row * k..][..k]));
        let mut single = matrices.each_ref().map(|matrix| vec![1.0; rows * matrix.n()]);
        for (matrix, out) in matrices.iter().zip(&mut single) {
            matrix.multiply_add(&pool, &x, rows, out);
        }
        let biases = matrices.each_ref().map(|matrix| vec![1.0; matrix.n()]);
        let mut many = matrices.each_ref().map(|matrix| vec![0.0; rows * matrix.n()]);
        let parts = matrices.iter().zip(&biases).zip(&mut many);
        let parts = parts.map(|((matrix, bias), out)| Product { matrix, bias: Some(bias), out });
        Matrix::multiply_many(&pool, &x, rows, &mut parts.collect::<Vec<_>>());
        assert_eq!(many, single, "{cpu:?}");
    }
}

#[test]
fn silu_is_applied_to_the_gate() {
    let pool = Pool::new(2);
    let (n, k, rows) = (41, 64, 19);
    let values: Vec<f32> = noise(9, rows * k).iter().map(|v| v * 40.0).collect();
    for cpu in Cpu::supported() {
        let (gate, up) = (matrix(cpu, "q4_0", n, k, 1), matrix(cpu, "q8_0", n, k, 2));
        let x = filled(&pool, &gate, rows, &values);
        let mut parts = [vec![0.0; rows * n], vec![0.0; rows * n], vec![0.0; rows * n]];
        let [gates, ups, out] = &mut parts;
        gate.multiply(&pool, &x, rows, gates);
        up.multiply(&pool, &x, rows, ups);
        Matrix::multiply_silu(&gate, &up, &pool, &x, rows, out);
        for ((gate, up), out) in gates.iter().zip(ups).zip(out) {
            let want = f64::from(*gate) / (1.0 + (-f64::from(*gate)).exp()) * f64::from(*up);
            assert!((f64::from(*out) - want).abs() <= 1e-6 * want.abs(), "{out}, not {want}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn products_are_those_of_the_reference(
        n in 1usize..70, blocks in 1usize..7, odd in 1usize..32, rows in 1usize..20,
        kind in 0usize..5, seed in any::<u64>(),
    ) {
        let kind = KINDS[kind];
        let k = if kind == "f32" { blocks * BLOCK - odd } else { blocks * BLOCK };
        let values = noise(seed ^ 1, rows * k);
        let pool = Pool::new(2);
        let mut by_path = Vec::new();
        for cpu in Cpu::supported() {
            let matrix = matrix(cpu, kind, n, k, seed);
            let x = filled(&pool, &matrix, rows, &values);
            let mut out = vec![f32::NAN; rows * n];
            matrix.multiply(&pool, &x, rows, &mut out);
            assert_close(&out, &reference(&matrix, rows, &values), &format!("{cpu:?} {kind}"));
            by_path.push((cpu.path(), out));
        }
        // The vector paths do the same operations in the same order.
        let vector: Vec<_> = by_path.iter().filter(|(path, _)| *path != Path::Portable).collect();
        prop_assert!(vector.windows(2).all(|pair| pair[0].1 == pair[1].1));
    }

    #[test]
    fn exp_is_precise(x in -87f32..88.0) {
        let (got, want) = (f64::from(product::exp(x)), f64::from(x).exp());
        prop_assert!((got / want - 1.0).abs() < 2.5e-7, "{} {} {}", x, got, want);
    }
}
