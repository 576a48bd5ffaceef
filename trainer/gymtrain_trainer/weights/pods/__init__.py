"""The vLLM pods of the run: who they are, what they hold, and one version into one of them."""
