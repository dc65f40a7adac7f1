#!/usr/bin/env python3
"""Store the weights of a GGUF in another type: requantise.py IN.gguf OUT.gguf Q4_0|Q8_0

llama.cpp repacks Q4_0 for the CPU at hand and not the demo model's Q4_1, so this is what it is
measured with. Weights are dequantised and quantised again; norms stay f32, and the embedding
(which is the output layer too) stays at 8 bit, as in the shipped file.
"""

import sys

import gguf
from gguf.quants import dequantize, quantize

FILE_TYPES = {"Q4_0": 2, "Q8_0": 7}


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        item = field.types[-1] if is_array else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=item)


def main() -> None:
    source, target, kind = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer)
    writer.add_file_type(FILE_TYPES[kind])
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        stored = gguf.GGMLQuantizationType[kind]
        if values.ndim == 1:
            stored = gguf.GGMLQuantizationType.F32
        elif tensor.name == "token_embd.weight":
            stored = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
