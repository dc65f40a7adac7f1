//! Decoding of quantised blocks, against candle's.

#![cfg(feature = "candle")]

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use sluice_models::TensorType;
use sluice_models::quant::decode;
use sluice_models::testing::Random;

#[test]
fn random_blocks_decode_as_candle_decodes_them() {
    for (ours, candles) in [
        (TensorType::F16, GgmlDType::F16),
        (TensorType::BF16, GgmlDType::BF16),
        (TensorType::Q8_0, GgmlDType::Q8_0),
        (TensorType::Q4_0, GgmlDType::Q4_0),
        (TensorType::Q4_1, GgmlDType::Q4_1),
        (TensorType::Q4_K, GgmlDType::Q4K),
        (TensorType::Q6_K, GgmlDType::Q6K),
    ] {
        let (rows, cols) = (5, 512);
        let data = Random(3).weights(ours, rows, cols, 1.0);
        let mut values = vec![0.0; rows * cols];
        decode(ours, &data, &mut values);
        let storage = QStorage::from_data(Cow::Owned(data), &Device::Cpu, candles).unwrap();
        let tensor = QTensor::new(storage, (rows, cols)).unwrap();
        let expected = tensor.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
        let expected = expected.to_vec1::<f32>().unwrap();
        let spread = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        assert!(spread > 0.1, "{ours:?}: the blocks are all but empty");
        for (index, (value, expected)) in values.iter().zip(&expected).enumerate() {
            let near = (value - expected).abs() <= 1e-6 * spread;
            assert!(near, "{ours:?}[{index}]: {value}, candle has {expected}");
        }
    }
}
