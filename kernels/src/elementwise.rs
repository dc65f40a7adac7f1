//! Norms, rotary embeddings, activations.
