"""Building images/*/Dockerfile into the cluster."""
