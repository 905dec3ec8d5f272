"""The coordinator of sandboxed REPL sessions."""
