"""Protocols of the endpoint beside OpenAI's chat completions and completions."""
