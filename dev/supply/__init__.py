"""What the cluster is made of: Go binaries, the Debian base, image archives. All cached."""
