"""Making a release: images, chart, command line, each named by digest (docs/releases.md)."""
