"""What the machine itself is asked for: packages, processes, network, cgroups."""
