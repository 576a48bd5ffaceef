"""The cluster: certificates, containerd, control plane, node, add-ons, and their removal."""
