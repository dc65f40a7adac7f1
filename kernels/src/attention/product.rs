//! The small matrix product inside attention: a few rows times a page of keys or values.

use std::array::from_fn;

use crate::lanes::{Element, LANES, Lanes, prefetch};

/// Bytes.
const CACHE_LINE: usize = 64;

/// `c[m][n] += sum over d of a[m][d] * b[d][n]`, for `d` in `0..depth`, in this order: each sum is
/// one chain of fused multiplications, so it does not depend on how rows and columns are tiled.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, E> {
    pub(super) a: &'a [f32],
    pub(super) a_stride: usize,
    pub(super) b: &'a [E],
    pub(super) b_stride: usize,
    pub(super) depth: usize,
    pub(super) c_stride: usize,
    /// What is multiplied next, laid out like `b`: brought into the cache on the way.
    pub(super) ahead: &'a [E],
}

impl<E: Element> Product<'_, E> {
    /// Adds to `rows` rows of `cols` columns (whole vectors) of `c`.
    #[inline(always)]
    pub(super) fn add_to<L: Lanes>(&self, lanes: L, rows: usize, cols: usize, c: &mut [f32]) {
        let mut row = 0;
        while row < rows {
            let tile = (rows - row).min(L::TILE.0);
            let mut col = 0;
            while col < cols {
                if L::TILE.1 == 2 && cols - col >= 2 * LANES {
                    self.tile_of::<L, 2>(lanes, tile, row, col, c);
                    col += 2 * LANES;
                } else {
                    self.tile_of::<L, 1>(lanes, tile, row, col, c);
                    col += LANES;
                }
            }
            row += tile;
        }
    }

    #[inline(always)]
    fn tile_of<L: Lanes, const N: usize>(
        &self,
        lanes: L,
        tile: usize,
        row: usize,
        col: usize,
        c: &mut [f32],
    ) {
        match tile {
            1 => self.tile::<L, 1, N>(lanes, row, col, c),
            2 => self.tile::<L, 2, N>(lanes, row, col, c),
            3 => self.tile::<L, 3, N>(lanes, row, col, c),
            4 => self.tile::<L, 4, N>(lanes, row, col, c),
            5 => self.tile::<L, 5, N>(lanes, row, col, c),
            6 => self.tile::<L, 6, N>(lanes, row, col, c),
            7 => self.tile::<L, 7, N>(lanes, row, col, c),
            8 => self.tile::<L, 8, N>(lanes, row, col, c),
            9 => self.tile::<L, 9, N>(lanes, row, col, c),
            10 => self.tile::<L, 10, N>(lanes, row, col, c),
            11 => self.tile::<L, 11, N>(lanes, row, col, c),
            _ => self.tile::<L, 12, N>(lanes, row, col, c),
        }
    }

    /// `M` rows and `N` vectors of columns, held in registers.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(
        &self,
        lanes: L,
        row: usize,
        col: usize,
        c: &mut [f32],
    ) {
        if M > L::TILE.0 || self.depth == 0 {
            return;
        }
        let width = N * LANES;
        let a = &self.a[row * self.a_stride..];
        assert!((M - 1) * self.a_stride + self.depth <= a.len(), "rows of a");
        let b = &self.b[col..];
        assert!((self.depth - 1) * self.b_stride + width <= b.len(), "rows of b");
        let c = &mut c[row * self.c_stride + col..];
        assert!((M - 1) * self.c_stride + width <= c.len(), "rows of c");
        let at = |m: usize, n: usize| m * self.c_stride + n * LANES;
        let mut sums: [[L::F32s; N]; M] = from_fn(|m| {
            // SAFETY: within `c`, by the third assertion.
            from_fn(|n| lanes.load(unsafe { vector(c, at(m, n)) }))
        });
        for d in 0..self.depth {
            if row == 0 {
                self.fetch_ahead(d * self.b_stride + col, width);
            }
            // SAFETY: within `b`, by the second assertion.
            let b: [L::F32s; N] =
                from_fn(|n| E::load(lanes, unsafe { vector(b, d * self.b_stride + n * LANES) }));
            for (m, sums) in sums.iter_mut().enumerate() {
                // SAFETY: within `a`, by the first assertion.
                let a = lanes.splat(unsafe { *a.get_unchecked(m * self.a_stride + d) });
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = lanes.fma(a, b, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                let to = c[at(m, n)..].first_chunk_mut().expect("within c, by the third assertion");
                lanes.store(sum, to);
            }
        }
    }
}

impl<E> Product<'_, E> {
    /// Asks for `len` elements of what comes next.
    #[inline(always)]
    fn fetch_ahead(&self, start: usize, len: usize) {
        for line in (0..len).step_by(CACHE_LINE / size_of::<E>()) {
            prefetch(self.ahead.as_ptr().wrapping_add(start + line));
        }
    }
}

/// The vector at `start`.
///
/// # Safety
/// `start + LANES <= slice.len()`.
#[inline(always)]
unsafe fn vector<T>(slice: &[T], start: usize) -> &[T; LANES] {
    // SAFETY: in bounds by the contract; an array of T is aligned like T.
    unsafe { &*slice.as_ptr().add(start).cast() }
}
