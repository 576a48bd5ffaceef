"""The gateway of a run: OpenAI routes in front of all its vLLM pods, with exact token ids across turns."""
