"""Pure builders of every object that a run owns. No clock, no network, no cluster."""
