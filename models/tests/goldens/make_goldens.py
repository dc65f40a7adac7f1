#!/usr/bin/env python3
"""Make the golden files that the numerics tests compare with. Run once; the outputs are checked in.

    pip install torch transformers gguf safetensors tokenizers numpy
    python make_goldens.py tiny
    python make_goldens.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

The reference is Hugging Face transformers on a CPU in float32, attention in its plain ("eager")
form. It shares no code with this project: GGUF files are written and dequantised by the `gguf`
package.

`tiny` builds small models with seeded random weights, writes each as a Hugging Face directory and
as GGUF, and the logits of 40 fixed tokens, [40, vocab] little-endian f32, as NAME.logits; tiny.json
lists which files should give which logits. The weights are scaled so that attention is peaked and
every position matters: with transformers' own initial weights (deviation 0.02) a wrong rotary
embedding would hardly show. Weights stored in 16 bits, or quantised, are rounded first and the
reference runs on what the file really holds.

`smollm2` dequantises the demo model to float32 and continues five prompts greedily for 64 tokens,
end-of-sequence tokens not being special, each token from a whole forward pass. The five were chosen
from twelve so that the best logit always leads the second by at least 0.01: sums in another order,
with errors of 1e-4, cannot change the text. The tokenizer is built from the file's vocabulary with
the recipe that SmolLM2 is published with.
"""
import json
import os
import platform
import re
import shutil
import sys

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Ggml
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

HERE = os.path.dirname(os.path.abspath(__file__))
SEED, TOKENS, GENERATED, MIN_MARGIN = 2024, 40, 64, 0.01
SPECIAL = ["<|begin|>", "<|end|>"]
MERGES = ["t h", "Ġ th", "Ġth e", "i n", "e r", "a n", "o n", "Ġ a", "r e", "an d", "Ġ and",
          "Ġ o", "in g", "e s"]
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
             bos_token_id=270, eos_token_id=271, vocab_size=272)


def versions():
    return {"python": platform.python_version(), "torch": torch.__version__,
            "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
            "numpy": np.__version__}


def dump(value, *path):
    text = json.dumps(value, indent=1, ensure_ascii=False)
    on_one_line = lambda numbers: f"[{' '.join(numbers[1].split())}]"
    with open(os.path.join(HERE, *path), "w") as file:
        file.write(re.sub(r"\[([\d,\s]+)\]", on_one_line, text) + "\n")


# Tiny models.

def seeded(model):
    """Random weights: norms near one, biases and embeddings that matter, products of unit scale."""
    generator = torch.Generator().manual_seed(SEED)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            weight.data = 1 + 0.2 * noise
        elif name.endswith("bias") or "embed" in name:
            weight.data = 0.5 * noise
        elif "q_proj" in name or "k_proj" in name:
            weight.data = noise * 1.5 / weight.shape[1] ** 0.5
        else:
            weight.data = noise / weight.shape[1] ** 0.5
    model.tie_weights()
    return model.eval()


def rounded(weights, kind):
    """The weights as a file of type `kind` holds them, as float32."""
    if kind == "bf16+f16":  # values that both 16-bit types hold exactly
        keep = lambda w: torch.where(w.abs() < 2**-14, 0, w).bfloat16().float()
        return {name: keep(w) for name, w in weights.items()}
    if kind == "f32":
        return weights
    return {name: dequantised(w, ggml_type(name, w, kind)) for name, w in weights.items()}


def ggml_type(name, weight, kind):
    """Norms and biases stay F32, and like the demo model a Q4_1 file has a Q8_0 embedding."""
    if weight.dim() == 1:
        return Ggml.F32
    if kind == "Q4_1" and "embed" in name:
        return Ggml.Q8_0
    return Ggml[kind]


def dequantised(weight, kind):
    raw = gguf.quants.quantize(weight.numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(raw, kind).astype(np.float32))


def byte_tokens():
    """GPT-2's printable stand-ins for the 256 bytes, then merges, then special tokens."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    return sorted(byte_level) + [merge.replace(" ", "") for merge in MERGES] + SPECIAL


def write_tokenizer(out):
    tokens = byte_tokens()
    vocab = {token: index for index, token in enumerate(tokens[:-len(SPECIAL)])}
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab=vocab, merges=[tuple(merge.split(" ")) for merge in MERGES]))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False)
                            for t in SPECIAL])
    tok.save(os.path.join(HERE, out, "tokenizer.json"))
    dump({"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "add_bos_token": False,
          "tokenizer_class": "PreTrainedTokenizerFast"}, out, "tokenizer_config.json")


def write_directory(model, out, dtype, shard, classic):
    shutil.rmtree(os.path.join(HERE, out), ignore_errors=True)
    model.to(dtype).save_pretrained(os.path.join(HERE, out), max_shard_size=shard)
    model.float()
    write_tokenizer(out)
    if classic:  # config.json as transformers 4 wrote it, which most published models have
        with open(os.path.join(HERE, out, "config.json")) as file:
            config = json.load(file)
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        config["torch_dtype"] = config.pop("dtype")
        dump(config, out, "config.json")


def permute(weight, heads):
    """The order in which "llama" GGUF files keep the rows of q and k: rotated pairs together."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def rope_factors(rope, head_dim):
    """Llama 3's scaling as divisors of the frequencies, as converters store it."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-i / head_dim)
        smooth = min(max((turns / (2 * np.pi) - low) / (high - low), 0), 1)
        factors.append(1 / (smooth + (1 - smooth) / rope["factor"]))
    return np.array(factors, dtype=np.float32)


def gguf_name(name):
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, end = name.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{end}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{parts[part]}.{end}"


def write_gguf(model, weights, path, kind):
    config = model.config
    arch, rope = config.model_type, config.rope_parameters
    writer = gguf.GGUFWriter(os.path.join(HERE, path), arch)
    writer.add_name(path)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if arch == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    else:
        writer.add_rope_dimension_count(head_dim)
        writer.add_vocab_size(config.vocab_size)
    tokens = byte_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
    for name, weight in weights.items():
        values = weight.numpy()
        if arch == "llama" and ".q_proj" in name:
            values = permute(values, config.num_attention_heads)
        if arch == "llama" and ".k_proj" in name:
            values = permute(values, config.num_key_value_heads)
        stored = ggml_type(name, weight, kind)
        raw = gguf.quants.quantize(np.ascontiguousarray(values), stored)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_models():
    rope = dict(rope_type="default", rope_theta=10000.0)
    llama3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=64)
    llama = lambda **more: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=16, **more))
    qwen3 = lambda **more: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, **more))
    qwen2 = Qwen2ForCausalLM(
        Qwen2Config(**SIZES, rope_parameters=rope | {"rope_theta": 1e6}, tie_word_embeddings=False))
    plain = llama(rope_parameters=rope, tie_word_embeddings=True)
    # name, model, weights as, directory's type, shard size, classic config.json, GGUF's type
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    return [
        ("llama", plain, "f32", f32, "150KB", False, "F32"),
        ("llama-q8_0", plain, "Q8_0", None, None, False, "Q8_0"),
        ("llama-q4_1", plain, "Q4_1", None, None, False, "Q4_1"),
        ("llama3", llama(rope_parameters=llama3, tie_word_embeddings=False), "bf16+f16", bf16,
         "10MB", True, "F16"),
        ("qwen2", qwen2, "bf16+f16", f16, "10MB", True, "F16"),
        ("qwen3", qwen3(rope_parameters=rope | {"rope_theta": 1e6}, tie_word_embeddings=True),
         "bf16+f16", bf16, "10MB", False, "F16"),
        ("qwen3-untied", qwen3(rope_parameters=rope, tie_word_embeddings=False), "bf16+f16", bf16,
         "10MB", False, "BF16"),
    ]


def tiny():
    tokens = np.random.default_rng(SEED).integers(0, 256, TOKENS).tolist()
    cases = []
    for name, model, kind, dtype, shard, classic, ggml in tiny_models():
        model.config._attn_implementation = "eager"
        weights = dict(seeded(model).named_parameters())
        weights = rounded({key: w.data for key, w in weights.items()}, kind)
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy()
        logits.astype("<f4").tofile(os.path.join(HERE, f"{name}.logits"))
        files = [f"{name}.gguf"]
        write_gguf(model, weights, files[0], ggml)
        if dtype is not None:
            files.append(name)
            write_directory(model, name, dtype, shard, classic)
        cases.append({"logits": f"{name}.logits", "models": files})
        print(name, "largest logit", np.abs(logits).max())
    dump({"versions": versions(), "tokens": tokens, "cases": cases}, "tiny.json")


# The demo model.

PROMPTS = [
    "<|im_start|>user\nExplain how a bicycle stays upright.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "In 1969, 3 astronauts flew to the Moon. Their names were",
    "Water boils at 100 °C at sea level, but on a mountain",
]


def smollm2_model(reader, fields):
    """The dequantised weights in a LlamaForCausalLM."""
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=fields["llama.vocab_size"], hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"], num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"], tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=fields["llama.rope.freq_base"]),
        attn_implementation="eager"))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    for name, weight in model.named_parameters():
        tensor = stored.pop(gguf_name(name))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape(tuple(weight.shape))
        if ".q_proj" in name or ".k_proj" in name:
            count = heads if ".q_proj" in name else kv_heads
            pairs = values.reshape(count, -1, 2, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        weight.data = torch.from_numpy(np.ascontiguousarray(values))
    assert not stored, f"unused tensors: {list(stored)}"
    model.tie_weights()
    return model.eval()


def smollm2_tokenizer(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    special = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == 3]
    tok.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False)
                            for t in special])
    tok.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tok)


@torch.no_grad()
def greedy(model, prompt):
    """The next tokens, and the smallest lead of a chosen token over the runner-up."""
    output, margin = [], float("inf")
    for _ in range(GENERATED):
        logits = model(torch.tensor([prompt + output]), logits_to_keep=1).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        margin = min(margin, best - second)
        output.append(int(logits.argmax()))
    return output, margin


def smollm2(path):
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    model, tok = smollm2_model(reader, fields), smollm2_tokenizer(fields)
    results = []
    for text in PROMPTS:
        prompt = tok(text, add_special_tokens=False)["input_ids"]
        output, margin = greedy(model, prompt)
        print(f"margin {margin:.4f}  {text!r} -> {tok.decode(output)!r}", flush=True)
        assert margin > MIN_MARGIN, "choose another prompt"
        results.append({"text": text, "prompt": prompt, "output": output,
                        "output_text": tok.decode(output), "smallest_margin": round(margin, 5)})
    dump({"versions": versions(), "prompts": results}, "smollm2.json")


if __name__ == "__main__":
    print(versions())
    torch.manual_seed(SEED)
    if sys.argv[1:] == ["tiny"]:
        tiny()
    elif sys.argv[1:2] == ["smollm2"] and len(sys.argv) == 3:
        smollm2(sys.argv[2])
    else:
        sys.exit(__doc__)
