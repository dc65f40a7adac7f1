//! Rows of activations in the form that a matrix product reads.

use crate::matrix::Matrix;

/// Rows of `cols` activations: f32, or int8 in blocks of 32 with a scale and a scaled sum each,
/// whichever the matrix they are multiplied with needs.
#[derive(Debug)]
pub struct Activations {}

impl Activations {
    /// Room for `rows` rows of `cols` values.
    #[must_use]
    pub fn new(rows: usize, cols: usize) -> Activations {
        todo!()
    }
    /// Stores row `row` in the form that `matrix` reads.
    pub fn set_row(&mut self, row: usize, values: &[f32], matrix: &Matrix) {
        todo!()
    }
}
