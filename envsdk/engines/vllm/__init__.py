"""The `vllm` engine: vLLM behind the engine contract."""
