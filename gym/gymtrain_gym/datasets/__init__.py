"""The datasets of a run: made, checked, indexed."""
