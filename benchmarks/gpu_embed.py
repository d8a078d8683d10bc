"""Sentences a second of examples/embed.py on an NVIDIA GPU, beside sentence-transformers on torch in the same run.

    python benchmarks/gpu_embed.py --model DIR [--json FILE]

DIR holds the model as sentence-transformers has it. First the vectors are held to the golden ones of tests/data, in
float32, float16 and bfloat16; a benchmark of wrong vectors would be none. Then both embed the same sentences,
tokenizing included, in float16: medians of several calls."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx

ROOT = Path(__file__).parents[1]
BATCHES = (1, 32, 256)


def example() -> Any:
    specification = importlib.util.spec_from_file_location("embed", ROOT / "examples" / "embed.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["embed"] = module
    specification.loader.exec_module(module)
    return module


def golden(embed: Any, folder: Path) -> dict[str, dict[str, float]]:
    """The smallest cosine and the largest error against the golden vectors, by dtype."""
    known = json.loads((ROOT / "tests" / "data" / "minilm_golden.json").read_text("ascii"))["sentences"]
    expected = np.array([sentence["vector"] for sentence in known])
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        vectors = embed.Model(folder, "cuda", dtype).embed([s["text"] for s in known], batch_size=12).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        cosine = float(((vectors * expected).sum(1) / lengths).min())
        found[dtype] = {"min cosine": cosine, "max error": float(np.abs(vectors - expected).max())}
    return found


def rate(call: Callable[[list[str]], Any], sentences: list[str], calls: int = 15) -> float:
    """Sentences a second, the median of the calls."""
    for _ in range(4):
        call(sentences)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call(sentences)
        times.append(time.perf_counter() - start)
    return len(sentences) / statistics.median(times)


def peers(folder: Path) -> dict[str, Callable[[list[str]], Any]]:
    """sentence-transformers on torch: eager, and with its transformer compiled."""
    import torch
    from sentence_transformers import SentenceTransformer

    def load() -> Any:
        return SentenceTransformer(str(folder), device="cuda", model_kwargs={"torch_dtype": torch.float16})

    def of(model: Any) -> Callable[[list[str]], Any]:
        return lambda sentences: model.encode(sentences, batch_size=256, show_progress_bar=False)

    compiled = load()
    compiled[0].auto_model = torch.compile(compiled[0].auto_model, dynamic=True)
    return {"torch eager": of(load()), "torch.compile": of(compiled)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    embed = example()
    right = golden(embed, options.model)
    lines = (ROOT / "examples" / "data" / "sentences.txt").read_text("utf-8").splitlines()
    model = embed.Model(options.model, "cuda", "float16")
    subjects: dict[str, Callable[[list[str]], Any]] = {
        "nbxtensor": lambda sentences: model.embed(sentences, batch_size=256),
        **peers(options.model),
    }
    rates: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        sentences = [lines[i % len(lines)] for i in range(batch)]
        rates[f"batch {batch}"] = {name: rate(call, sentences) for name, call in subjects.items()}
    import torch
    import triton

    machine = {
        "gpu": nbx.device("cuda").info.name,
        "python": platform.python_version(),
        "triton": triton.__version__,
        "torch": torch.__version__,
        "sentence-transformers": importlib.import_module("sentence_transformers").__version__,
        "nbxtensor": nbx.__version__,
        "date": date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    result = {"machine": machine, "golden": right, "sentences a second, float16": rates}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
