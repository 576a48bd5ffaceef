"""What is refused before anything expensive starts: settings, model, lengths."""
