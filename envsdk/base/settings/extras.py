"""Packages that only some of envsdk needs, and the extras of `pip install` that bring them."""

from __future__ import annotations

from importlib.util import find_spec

from envsdk.contracts.failures import ConfigurationError

EXTRA_OF = {
    "accelerate": "smollm2",
    "datasets": "datasets",
    "e2b": "e2b",
    "e2b_dockerfile_utils": "terminal",
    "gguf": "smollm2",
    "httpx2": "openai",
    "hypothesis": "testing",
    "jsonschema": "tools",
    "langdetect": "rlvr",
    "llguidance": "train",
    "math_verify": "rlvr",
    "mcp": "mcp",
    "megatron": "megatron",
    "mlflow": "mlflow",
    "opentelemetry": "otel",
    "opentelemetry.exporter": "otel",
    "opentelemetry.sdk": "otel",
    "pandas": "pandas",
    "peft": "lora",
    "psycopg": "postgres",
    "pyarrow": "train",
    "pyte": "terminal",
    "pytest": "testing",
    "ray": "train",
    "safetensors": "train",
    "sqlalchemy": "train",
    "starlette": "view",
    "tensorboard": "train",
    "torch": "train",
    "trackio": "trackio",
    "transformers": "train",
    "uvicorn": "view",
    "vllm": "vllm",
    "wandb": "wandb",
}
"""Extras by importable module: one with all that a command needs which imports it."""


def missing_package(error: ModuleNotFoundError) -> str | None:
    """What to install where `error` names a package of an extra; None when it names anything else."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    return None if extra is None else f"{module} is not installed: pip install 'envsdk[{extra}]'"


def require(purpose: str, *modules: str) -> None:
    """ConfigurationError when one of these modules of extras is not installed; nothing is imported."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        extras = ",".join(sorted({EXTRA_OF[module] for module in missing}))
        raise ConfigurationError(
            f"{purpose} needs {', '.join(missing)}, not installed here: pip install 'envsdk[{extras}]'"
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
