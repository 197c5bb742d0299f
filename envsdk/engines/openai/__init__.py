"""The `openai` engine: any server that speaks OpenAI's completions protocol and gives token ids."""
