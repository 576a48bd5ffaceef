"""The Kubernetes client of operator and broker."""
