"""ftd: a local model daemon with Ollama's commands and API."""

__version__ = "0.1.0"
