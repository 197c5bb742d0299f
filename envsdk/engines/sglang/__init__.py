"""The SGLang engine: SGLang's own HTTP server, started as a child process or already running."""
