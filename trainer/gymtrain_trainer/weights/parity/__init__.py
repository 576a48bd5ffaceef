"""Do vLLM and the trainer compute the same?"""
