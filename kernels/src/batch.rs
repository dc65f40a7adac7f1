//! The ragged batch of one step: which row belongs to which position of which sequence, and where
//! its keys and values lie.

use crate::kv::PagedKv;

/// Most query vectors that attention works on together: they share each load of a key or value.
pub(crate) const TILE_VECTORS: usize = 12;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Width of a head, even.
    pub dim: usize,
}

impl Heads {
    /// Query heads that share a key and value head.
    pub(crate) fn group(self) -> usize {
        self.query / self.kv
    }

    /// Rows of a sequence that are worked on together.
    fn tile_rows(self) -> usize {
        (TILE_VECTORS / self.group()).max(1)
    }
}

/// One row of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) position: usize,
    /// The block that holds its key and value, in slot `position % BLOCK`.
    pub(crate) block: usize,
}

/// Successive rows of one sequence that attention works on together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Position of the first row.
    pub(crate) position: usize,
    /// Where the sequence's block table starts.
    table: usize,
}

impl Tile {
    /// Positions that its last row sees.
    pub(crate) fn context(&self) -> usize {
        self.position + self.rows
    }
}

/// The rows of one step; its memory is reused from step to step.
#[derive(Debug)]
pub struct Batch {
    heads: Heads,
    num_blocks: u32,
    rows: Vec<Row>,
    tiles: Vec<Tile>,
    tables: Vec<u32>,
}

impl Batch {
    /// An empty batch over a pool of `num_blocks` blocks, with room for `max_rows` rows.
    #[must_use]
    pub fn new(heads: Heads, num_blocks: u32, max_rows: usize) -> Batch {
        let rows = Vec::with_capacity(max_rows);
        Batch { heads, num_blocks, rows, tiles: Vec::with_capacity(max_rows), tables: Vec::new() }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tiles.clear();
        self.tables.clear();
    }

    /// Appends `rows` rows of a sequence at `start`, whose block table is `blocks`: `blocks[p /
    /// 32]` holds position `p`.
    ///
    /// # Panics
    /// The blocks are too few or not in the pool: callers check what comes from outside.
    pub fn push(&mut self, start: u32, rows: usize, blocks: &[u32]) {
        let start = start as usize;
        let blocks = &blocks[..(start + rows).div_ceil(PagedKv::BLOCK)];
        assert!(blocks.iter().all(|&block| block < self.num_blocks), "a block outside the pool");
        let (first_row, table) = (self.rows.len(), self.tables.len());
        self.tables.extend_from_slice(blocks);
        self.rows.extend(
            (start..start + rows).map(|position| Row {
                position,
                block: blocks[position / PagedKv::BLOCK] as usize,
            }),
        );
        let step = self.heads.tile_rows();
        self.tiles.extend((0..rows).step_by(step).map(|row| Tile {
            first_row: first_row + row,
            rows: step.min(rows - row),
            position: start + row,
            table,
        }));
    }

    /// Puts the costliest tiles first, so that threads which take them in order end together.
    pub fn seal(&mut self) {
        self.tiles.sort_unstable_by_key(|tile| {
            (std::cmp::Reverse(tile.rows * tile.context()), tile.first_row)
        });
    }

    /// Rows in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The heads that it was made for.
    #[must_use]
    pub fn heads(&self) -> Heads {
        self.heads
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// The blocks that hold the positions that this tile sees.
    pub(crate) fn table(&self, tile: &Tile) -> &[u32] {
        &self.tables[tile.table..][..tile.context().div_ceil(PagedKv::BLOCK)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tiles_cover_each_row_once_and_the_costliest_come_first(
            query in 1_usize..30,
            chunks in prop::collection::vec((0_u32..80, 1_usize..17), 1..4),
        ) {
            let mut batch = Batch::new(Heads { query, kv: 1, dim: 8 }, 5, 48);
            for &(start, rows) in &chunks {
                batch.push(start, rows, &[1, 2, 3, 4]);
            }
            batch.seal();
            let mut seen = vec![0; batch.len()];
            for tile in batch.tiles() {
                prop_assert!(tile.rows == 1 || tile.rows * query <= TILE_VECTORS);
                for row in 0..tile.rows {
                    let position = tile.position + row;
                    seen[tile.first_row + row] += 1;
                    prop_assert_eq!(batch.rows()[tile.first_row + row].position, position);
                    prop_assert_eq!(batch.rows()[tile.first_row + row].block, position / 32 + 1);
                }
                prop_assert_eq!(batch.table(tile).len(), tile.context().div_ceil(32));
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
            let costs = batch.tiles().iter().map(|tile| tile.rows * tile.context());
            prop_assert!(costs.is_sorted_by(|a, b| a >= b));
        }
    }
}
