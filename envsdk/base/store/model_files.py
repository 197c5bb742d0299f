"""The contents of a Hugging Face folder, and whether a policy can be loaded from it, checked before a start.

python -m envsdk.base.store.model_files FOLDER     checks tokenizer and chat template in a process of its own
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envsdk.base.settings.memory import ModelSizes
from envsdk.base.settings.problems import Problem
from envsdk.contracts.failures import ConfigurationError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_DIGEST_BYTES = 1 << 20
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|word_embeddings|tok_embeddings|embed_in|wte)\.weight$")
COUNTED = frozenset({"llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Types of models whose keys in config.json mean what `model_sizes` takes them for."""
_SIZES = frozenset({
    "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "moe_intermediate_size",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
})  # fmt: skip
_NO_DTYPE = "no type"
_CHAT_TIMEOUT_S = 120.0
"""Reading the largest tokenizer takes seconds; a chat template is a program, which may never end."""
_CHAT_BYTES = 8 * 1024**3
"""Address space of the process that tries them."""


def is_model_folder(folder: Path) -> bool:
    """Whether it is a Hugging Face folder."""
    return (folder / "config.json").is_file()


def newest_model(path: Path) -> Path | None:
    """The Hugging Face folder that `path` is, or has in it as a checkpoint, or as a run in its newest one."""
    checkpoints = sorted(path.glob("checkpoints/step_*"))
    candidates = (path, path / "model", *(checkpoint / "model" for checkpoint in checkpoints[-1:]))
    return next(filter(is_model_folder, candidates), None)


def require_model_folder(folder: Path) -> None:
    """ConfigurationError when it is none."""
    if not is_model_folder(folder):
        raise ConfigurationError(
            f"pretrain: {folder} is no Hugging Face model folder: it holds no config.json"
        )


def model_problem(folder: Path) -> str | None:
    """What stands against playing with the model in a folder; None when nothing does."""
    if problem := config_problem(folder):
        return problem
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return _own_code_problem(folder, config) or weights_problem(folder) or _tokens_problem(folder, config)


def config_problem(folder: Path) -> str:
    """Why config.json is that of no model; empty where it may be one's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"{folder / 'config.json'} cannot be read: {error}"
    if not isinstance(config, dict):
        return f"{folder / 'config.json'} must hold a JSON object, not {type(config).__name__}"
    for name, value in text_config(folder).items():
        if name in _SIZES and isinstance(value, str | float | bool):
            return f"{folder / 'config.json'}: {name} must be a whole number, not {value!r}"
    return ""


def _own_code_problem(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Problem of a model that only Python code in its folder describes."""
    if "auto_map" not in config or find_spec("transformers") is None:
        return None
    from transformers import CONFIG_MAPPING

    if config.get("model_type") in CONFIG_MAPPING:
        return None
    return (
        f"the model in {folder} (model_type {config.get('model_type')!r}) needs Python code of its own "
        "(`auto_map` in config.json), which is never run; take a model that transformers knows by itself"
    )


def _tokens_problem(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Problem of the tokenizer, the chat template, and the embeddings that they need."""
    command = [sys.executable, "-m", __name__, str(folder)]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHAT_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        answer = json.loads(tried.stdout)
    except subprocess.TimeoutExpired:
        return f"the chat template in {folder} does not come to an end within {_CHAT_TIMEOUT_S:g} s"
    except ValueError:
        last = tried.stderr.strip().rpartition("\n")[2]
        return f"the tokenizer or the chat template in {folder} ends its process ({tried.returncode}): {last}"
    if "problem" in answer:
        return str(answer["problem"])
    num_tokens, num_embeddings = answer["num_tokens"], _num_embeddings(folder, config)
    if num_embeddings is None or num_tokens <= num_embeddings:
        return None
    return (
        f"the tokenizer in {folder} has {num_tokens} tokens, but the model embeds {num_embeddings}: take the "
        "tokenizer that the model was trained with, or give the model the missing rows with transformers "
        f"(`model.resize_token_embeddings({num_tokens})`, then save it)"
    )


def other_tokens(folder: Path, other: Path) -> str:
    """How the tokens of two models differ that are to be the same; empty where they do not."""
    known, others = _vocabulary(folder), _vocabulary(other)
    if known == others:
        return ""
    differing = [token for token in known.keys() | others.keys() if known.get(token) != others.get(token)]
    return (
        f"the tokenizer in {other} is not that of {folder}: {len(differing)} tokens have other ids, such as "
        f"{min(differing)!r}; take a model with the same tokenizer"
    )


def _vocabulary(folder: Path) -> dict[str, int]:
    try:
        read = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the tokenizer in {folder}: {error}") from error
    vocabulary = read.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # of pieces and their scores
        vocabulary = {str(piece[0]): number for number, piece in enumerate(vocabulary)}
    return {**vocabulary, **{each["content"]: each["id"] for each in read.get("added_tokens", ())}}


def _num_embeddings(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Rows of the input embedding: of the weights, or else as the configuration has it."""
    for _, tensors in _headers(folder):
        for name, entry in tensors.items():
            if _EMBEDDINGS.search(name) and len(entry["shape"]) == 2:
                return int(entry["shape"][0])
    return text_config(folder).get("vocab_size") or config.get("vocab_size")


def _headers(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Headers of the `*.safetensors` files, which have no problem."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            yield path, json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))


def weight_names(folder: Path) -> Iterator[str]:
    """Names in the `*.safetensors` files, which have no problem."""
    for _, tensors in _headers(folder):
        yield from tensors.keys() - {"__metadata__"}


def model_sizes(folder: Path) -> ModelSizes:
    """Sizes of the model in a folder, from its headers alone. LookupError that says what they lack."""
    try:
        if problem := weights_problem(folder):
            raise LookupError(problem)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        headers = [header for _, header in _headers(folder)]
        shapes = {
            name: [int(size) for size in entry["shape"]]
            for header in headers
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LookupError(f"the model's headers cannot be read: {error!r}") from error
    missing = _missing_files(folder)
    if missing:
        raise LookupError(f"the model's folder lacks {missing[0]}")
    kind = str(text.get("model_type") or config.get("model_type"))
    if kind not in COUNTED:
        raise LookupError(f"models of the type {kind} are not counted, {', '.join(sorted(COUNTED))} are")
    known = {"num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size"}
    width = text.get("moe_intermediate_size") or text.get("intermediate_size")
    for name, value in {**{name: text.get(name) for name in known}, "intermediate_size": width}.items():
        if not isinstance(value, int) or value < 1:
            raise LookupError(f"config.json of this model ({kind}) has no {name} of at least 1")
    width = width * int(text.get("num_experts_per_tok") or 1)
    width += int(text.get("shared_expert_intermediate_size") or 0)
    shapes = shapes or _shapes_of(folder)
    if config.get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)  # stored once more, and loaded once
    heads, hidden = text["num_attention_heads"], text["hidden_size"]
    head_dim = int(text.get("head_dim") or hidden // heads)
    in_layers = {name: shape for name, shape in shapes.items() if ".layers." in name}
    return ModelSizes(
        model_type=kind,
        num_parameters=sum(map(math.prod, shapes.values())),
        num_layer_parameters=sum(map(math.prod, in_layers.values())),
        num_expert_parameters=sum(math.prod(s) for name, s in shapes.items() if ".experts." in name),
        adapted_width=sum(sum(shape) for shape in in_layers.values() if len(shape) == 2),
        num_layers=text["num_hidden_layers"],
        hidden_size=hidden,
        intermediate_size=width,
        query_width=heads * head_dim,
        key_width=int(text.get("num_key_value_heads") or heads) * head_dim,
        head_width=head_dim,
        vocab_size=text["vocab_size"],
        norms_queries=kind.startswith("qwen3"),
        stored_dtype=_dtype(config),
    )


def hf_config(folder: Path) -> Any:
    """The configuration in a folder, as transformers has it. ValueError or OSError says why there is none."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (KeyError, TypeError, StrictDataclassError) as error:
        raise ValueError(f"config.json: {' '.join(str(error).split())}") from error


def _shapes_of(folder: Path) -> dict[str, list[int]]:
    """Those of the weights that a model with this config.json has, from transformers. LookupError."""
    if find_spec("transformers") is None or find_spec("torch") is None:
        raise LookupError("the model's folder has no *.safetensors files, and transformers is not installed")
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(hf_config(folder))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LookupError(f"config.json makes no model: {error!r}") from error
    return {name: list(weight.shape) for name, weight in model.named_parameters()}


def stored_dtype(folder: Path) -> str:
    """The type that config.json says the model is for, such as `bfloat16`; `no type` where it says none."""
    try:
        return _dtype(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        return _NO_DTYPE


def text_config(folder: Path) -> Mapping[str, Any]:
    """What config.json says of the language model; empty where that cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return dict(config.get("text_config") or config)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def stored_model_type(folder: Path) -> str:
    """The family of the language model that config.json names, such as `qwen3`; `unknown` without one."""
    return str(text_config(folder).get("model_type", "unknown"))


_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""A family's name for them: that of most, of GPT-2 and what came of it, of MPT."""


def max_positions(folder: Path) -> tuple[str, int] | None:
    """Longest sequence that config.json says the model is for, with its key; None where it does not.

    YaRN and the like scale it, as vLLM reckons. ValueError, TypeError, LookupError or AttributeError where it
    makes no sense.
    """
    config = text_config(folder)
    found = [(name, int(config[name])) for name in _POSITIONS if name in config]
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not found or (scaling.get("rope_type") or scaling.get("type")) not in ("dynamic", "linear", "yarn"):
        return found[0] if found else None
    name, limit = found[0]
    scaled = (scaling.get("original_max_position_embeddings") or limit) * scaling["factor"]
    return name, max(limit, int(scaled))


def positions_problem(model: Path | None, sequence_length: int) -> Problem | None:
    """Why a model takes no sequences of this length; None where config.json does not say so."""
    try:
        found = None if model is None else max_positions(model)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    if found is None or sequence_length <= found[1] + 1:  # nothing follows the last token
        return None
    return Problem(
        ("sequence_length",),
        f"{sequence_length}, but the model in {model} was made for at most {found[1]} positions "
        f"({found[0]}); lower it",
    )


def dense_family(folder: Path) -> str | None:
    """The family of a model without experts, such as `Qwen3`; None where config.json tells of any, or of no
    family."""
    text = text_config(folder)
    if any("expert" in key and value for key, value in text.items()) or not text.get("architectures"):
        return None
    return str(text["architectures"][0]).removesuffix("ForCausalLM")


def _dtype(config: Mapping[str, Any]) -> str:
    sections = (config.get("text_config") or {}, config)
    named = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    return str(next(filter(None, named), _NO_DTYPE))


def _missing_files(folder: Path) -> list[str]:
    """Which its index names, and are not there."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        named = sorted({str(name) for name in index["weight_map"].values()})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ["a model.safetensors.index.json that can be read"]
    return [name for name in named if not (folder / name).is_file()]


def weights_problem(folder: Path) -> str | None:
    """What is wrong with the `*.safetensors` files of a folder; None when they are complete or absent.

    Only headers are read, so that large models take no time.
    """
    for path in sorted(folder.glob("*.safetensors")):
        if not path.is_file():
            return f"{path} is no file" + (", but a link to nothing" if path.is_symlink() else "")
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or header_bytes > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                return f"{path} is damaged: no safetensors file of {size} bytes begins like this"
            text = file.read(header_bytes)
        try:
            tensors = json.loads(text)
            entries = [entry for name, entry in tensors.items() if name != "__metadata__"]
            if any(int(size) < 0 for entry in entries for size in entry["shape"]):
                raise ValueError("a tensor of negative size")
            ends = (entry["data_offsets"][1] for entry in entries)
            expected = _LENGTH_BYTES + header_bytes + max(map(int, ends), default=0)
        except (ValueError, AttributeError, KeyError, IndexError, TypeError):
            return f"{path} is damaged: its header cannot be read"
        if size < expected:
            return f"{path} is cut short: {size} of {expected} bytes"
    return None


def content_digest(folder: Path) -> str:
    """Changes when the model does; reads only the ends of large files. Of a folder that is not there, too."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in (".json", ".safetensors", ".jinja"):
            continue
        size = path.stat().st_size
        with path.open("rb") as file:
            digest.update(f"{path.name}:{size}:".encode())
            digest.update(file.read(_DIGEST_BYTES))
            if size > _DIGEST_BYTES:
                file.seek(-min(size - _DIGEST_BYTES, _DIGEST_BYTES), os.SEEK_END)
                digest.update(file.read())
    return digest.hexdigest()[:32]


def _try_tokens(folder: Path) -> dict[str, Any]:
    """Load tokenizer and chat template: what is wrong with them, or one more than the highest token id."""
    from envsdk.contracts.chat import ChatTokenizer

    try:
        return {"num_tokens": ChatTokenizer.load(folder).num_ids}
    except ConfigurationError as error:
        return {"problem": str(error)}


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_CHAT_BYTES, _CHAT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(_try_tokens(Path(sys.argv[1]))))
