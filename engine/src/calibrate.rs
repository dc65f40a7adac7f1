//! Cost coefficients: measured at start, refitted from every step.
