"""Building images/*/Dockerfile and examples/swe/*/Dockerfile into the cluster."""
